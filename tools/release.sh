#!/usr/bin/env bash
# Makes a release of the present commit: tags it, builds an archive and a wheel for Linux, macOS and Windows on x86-64 and
# arm64, and writes the checksums of all. Go and Python are needed, and no network. The same commit gives the same bytes.
#
#   tools/release.sh v1.2.0 [FOLDER]     FOLDER is dist by default
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?hint: tools/release.sh v1.2.0} out=$(mkdir -p "${2:-dist}" && cd "${2:-dist}" && pwd)
[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[a-z0-9.]+)?$ ]] || { echo "$version is no version; hint: such as v1.2.0"; exit 2; }
[[ -z $(git status --porcelain) ]] || { echo "the working tree has changes; hint: commit them"; exit 2; }
git rev-parse -q --verify "refs/tags/$version" >/dev/null || git tag -a "$version" -m "Athanor $version"
[[ $(git rev-parse "$version^{commit}") == $(git rev-parse HEAD) ]] || { echo "$version is another commit; hint: git checkout $version"; exit 2; }
export CGO_ENABLED=0 TZ=UTC SOURCE_DATE_EPOCH; SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
go build -trimpath -buildvcs=true -o "$work/host/" ./cmd/athanor
for target in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64; do
  name=athanor-$version-${target/\//-} dir=$work/athanor-$version-${target/\//-}
  GOOS=${target%/*} GOARCH=${target#*/} go build -trimpath -buildvcs=true -ldflags='-s -w' -o "$dir/" ./cmd/athanor ./cmd/athanor-lab
  cp -r README.md LICENSE docs examples "$dir/"
  "$work/host/athanor" man >"$dir/athanor.1"
  for shell in bash zsh fish powershell; do "$work/host/athanor" completion $shell >"$dir/completion.$shell"; done
  find "$dir" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
  case $target in
  windows/*) (cd "$work" && rm -f "$out/$name.zip" && find "$name" | LC_ALL=C sort | zip -qX "$out/$name.zip" -@) ;;
  *) tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" | gzip -n9 >"$out/$name.tar.gz" ;;
  esac
  python3 tools/wheel.py "$version" "$target" "$dir" "$out"
done
cd "$out" && LC_ALL=C sha256sum athanor* >SHA256SUMS && cat SHA256SUMS
echo "next: git push origin $version"
