#!/usr/bin/env python3
"""Packs a built binary as a wheel, so that `pip install` puts it on the path. Needs Python alone, and no network.

    tools/wheel.py v1.2.0 linux/amd64 FOLDER-WITH-BINARY FOLDER-FOR-WHEEL

SOURCE_DATE_EPOCH is the date of its files; the same input gives the same bytes.
"""
import base64, hashlib, os, pathlib, sys, time, zipfile

PLATFORMS = {
    "linux/amd64": "manylinux_2_17_x86_64", "linux/arm64": "manylinux_2_17_aarch64",
    "darwin/amd64": "macosx_12_0_x86_64", "darwin/arm64": "macosx_12_0_arm64",
    "windows/amd64": "win_amd64", "windows/arm64": "win_arm64",
}


def main(version, target, built, out):
    number, _, candidate = version.removeprefix("v").partition("-")  # 1.2.0-rc.1 is 1.2.0rc1 to pip
    number += candidate.replace(".", "")
    stem, tag = f"athanor_llm-{number}", f"py3-none-{PLATFORMS[target]}"
    binary = "athanor.exe" if target.startswith("windows/") else "athanor"
    root = pathlib.Path(__file__).parent.parent
    files = {
        f"{stem}.data/scripts/{binary}": (pathlib.Path(built) / binary).read_bytes(),
        f"{stem}.dist-info/METADATA": f"""Metadata-Version: 2.1
Name: athanor-llm
Version: {number}
Summary: Trains large language models on the GPUs or the CPU that you have
License: Apache-2.0
Requires-Python: >=3.8
Description-Content-Type: text/markdown

""".encode() + (root / "README.md").read_bytes(),
        f"{stem}.dist-info/WHEEL": f"Wheel-Version: 1.0\nGenerator: athanor\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
        f"{stem}.dist-info/licenses/LICENSE": (root / "LICENSE").read_bytes(),
    }
    record = f"{stem}.dist-info/RECORD"
    lines = [f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}" for name, data in files.items()]
    files[record] = ("\n".join(lines + [record + ",,"]) + "\n").encode()
    date = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800))[:6]  # a zip's first year is 1980
    path = pathlib.Path(out) / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, date)
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            entry.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16  # a regular file: else pip drops its modes
            wheel.writestr(entry, data)
    print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
