"""Many clients of `athanor api` at once, good and bad: no answer may be lost, wrong or a 5xx, and memory may not grow.

  api_clients.py BINARY FOLDER [--clients 100] [--seconds 600]

Needs Python alone. FOLDER is a model folder with a chat template, such as make_folder in lm_eval_check.py makes. Each client does one of the things
below after another, drawn at random, and knows what must come: a text with a seed is the one that it was alone. Exits with 1 if anything else comes, if requests are still counted
after all have left, or if the server's memory grows in the second half.
"""

import argparse
import collections
import http.client
import json
import random
import re
import signal
import socket
import struct
import sys
import threading
import time

from openai_client import serve

KEY = "a key"
CONTEXT = 256


class Wrong(Exception):
    pass


def expect(ok, *what):
    if not ok:
        raise Wrong(*what)


class Client:
    """What clients do. Each method returns what came of it."""

    def __init__(self, host, port, texts, r):
        self.host, self.port, self.texts, self.r = host, port, texts, r

    def ask(self, path, body, headers=()):
        c = http.client.HTTPConnection(self.host, self.port, timeout=300)
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        c.request("POST", path, raw, {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", **dict(headers)})
        return c, c.getresponse()

    def answered(self, path, body, *codes):
        """Asks until there is room, and returns the answer."""
        while True:
            c, a = self.ask(path, body)
            text = a.read()
            c.close()
            if a.status == 429 and 429 not in codes:
                time.sleep(self.r.uniform(0.2, 1))
                continue
            expect(a.status in codes, path, str(body)[:200], a.status, text[:300])
            return json.loads(text)

    def whole(self):
        body, want = self.r.choice(self.texts)
        got = self.answered("/v1/completions", body, 200)["choices"][0]["text"]
        expect(got == want, "another text", body, got, want)
        return "whole text"

    def several(self):
        some = [t for t in self.texts if t[0]["seed"] == 1]
        body = dict(some[0][0], prompt=[b["prompt"] for b, _ in some])
        got = [c["text"] for c in self.answered("/v1/completions", body, 200)["choices"]]
        expect(got == [want for _, want in some], "other texts", body, got)
        return "several texts"

    def streamed(self, pause=0.0, size=4096):
        body, want = self.r.choice(self.texts)
        while True:
            c, a = self.ask("/v1/completions", dict(body, stream=True))
            if a.status != 429:
                break
            a.read()
            c.close()
            time.sleep(self.r.uniform(0.2, 1))
        expect(a.status == 200, a.status)
        raw = b""
        while part := a.read1(size):
            raw += part
            time.sleep(pause)
        c.close()
        events = [e[len("data: "):] for e in raw.decode().split("\n\n") if e]
        expect(events and events[-1] == "[DONE]", "a stream without an end", raw[-300:])
        got = "".join(x["text"] for e in events[:-1] for x in json.loads(e)["choices"])
        expect(got == want, "another streamed text", body, got, want)
        return "streamed text"

    def slow(self):
        self.streamed(0.05, 64)
        return "slow reader"

    def chat(self):
        a = self.answered("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "gold"}], "max_tokens": 12, "temperature": 0}, 200)
        expect(a["choices"][0]["finish_reason"] in ("stop", "length"), a)
        return "chat"

    def scored(self):
        a = self.answered("/v1/completions", {"model": "tiny", "prompt": "gold and silver", "max_tokens": 0, "echo": True, "logprobs": 2}, 200)
        expect(a["choices"][0]["logprobs"]["token_logprobs"][0] is None, a)
        return "scored"

    def leaves(self):
        body, _ = self.r.choice(self.texts)
        s = socket.create_connection((self.host, self.port), timeout=300)
        raw = json.dumps(dict(body, stream=self.r.random() < 0.5, max_tokens=200)).encode()
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw[: self.r.choice([len(raw), len(raw), len(raw) // 2])])
        time.sleep(self.r.uniform(0, 0.3))
        if self.r.random() < 0.5:  # abruptly
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
        return "leaves"

    def idles(self):
        """Sends the beginning of headers, and waits until the server has had enough."""
        s = socket.create_connection((self.host, self.port), timeout=60)
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
        s.recv(1000)
        s.close()
        return "idles"

    def oversized(self):
        try:
            c, a = self.ask("/v1/completions", b'{"model": "tiny", "prompt": "' + b"a" * (17 << 20) + b'"}')
            status = a.status
            c.close()
        except (BrokenPipeError, ConnectionResetError):  # refused while it was still being sent
            return "oversized, cut off"
        expect(status == 413, status)
        return "oversized"

    def malformed(self):
        path, body, code = self.r.choice(MALFORMED)
        self.answered(path, body, code)
        return f"malformed ({code})"

    def stranger(self):
        c, a = self.ask("/v1/completions", {"model": "tiny", "prompt": "a"}, {"Authorization": "Bearer " + self.r.choice(["", "other", KEY * 9])})
        a.read()
        c.close()
        expect(a.status == 401, a.status)
        return "stranger"

    def garbage(self):
        s = socket.create_connection((self.host, self.port), timeout=60)
        try:
            s.sendall(self.r.randbytes(300) + b"\r\n\r\n")
            expect(s.recv(1000)[:12] in (b"", b"HTTP/1.1 400"), "garbage")
        except ConnectionError:
            pass
        s.close()
        return "garbage"


C, H = "/v1/completions", "/v1/chat/completions"
MALFORMED = [
    (C, b"", 400), (C, b"{", 400), (C, b"[]", 400), (C, b"null", 400), (C, b"\xff\xfe\x00", 400), (C, b'{"model": "tiny", "prompt": "a", "prompt": "b"}', 400),
    (C, b"[" * 100000, 400), (C, b'{"model": "tiny", "prompt": ' + b"[" * 20000 + b"]" * 20000 + b"}", 400),
    (C, {"model": "tiny"}, 400), (C, {"model": "other", "prompt": "a"}, 404), (C, {"model": "tiny", "prompt": 3}, 400),
    (C, {"model": "tiny", "prompt": [999999]}, 400), (C, {"model": "tiny", "prompt": [-1]}, 400), (C, {"model": "tiny", "prompt": [[1], []]}, 400),
    (C, {"model": "tiny", "prompt": ["a"] * 1000}, 400), (C, {"model": "tiny", "prompt": "gold " * 20000}, 400), (C, {"model": "tiny", "prompt": "a", "max_tokens": -1}, 400),
    (C, {"model": "tiny", "prompt": "a", "max_tokens": 1 << 40}, 400), (C, {"model": "tiny", "prompt": "a", "temperature": -1}, 400),
    (C, {"model": "tiny", "prompt": "a", "top_p": 7}, 400), (C, {"model": "tiny", "prompt": "a", "logprobs": 1000}, 400), (C, {"model": "tiny", "prompt": "a", "n": 5}, 400),
    (C, {"model": "tiny", "prompt": "a", "stop": [""]}, 400), (C, {"model": "tiny", "prompt": "a", "stop": {"a": 1}}, 400), (C, {"model": "tiny", "prompt": "a", "seed": 1.5}, 400),
    (H, {"model": "tiny"}, 400), (H, {"model": "tiny", "messages": []}, 400), (H, {"model": "tiny", "messages": [{"role": 3}]}, 400),
    (H, {"model": "tiny", "messages": [{"role": "user", "content": "gold " * 20000}]}, 400), ("/v1/embeddings", {"input": "a"}, 404),
]

# How often each thing is done, relative to the others.
SHARES = {"whole": 6, "several": 2, "streamed": 6, "slow": 3, "chat": 3, "scored": 2, "leaves": 6, "idles": 1, "oversized": 1, "malformed": 6, "stranger": 1, "garbage": 1}


def memory(pid):
    """Returns the bytes that the process has resident."""
    with open(f"/proc/{pid}/status") as f:
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))


def metric(host, port, name):
    c = http.client.HTTPConnection(host, port, timeout=60)
    c.request("GET", "/metrics", headers={"Authorization": f"Bearer {KEY}"})
    text = c.getresponse().read().decode()
    c.close()
    return {labels or "": float(value) for labels, value in re.findall(rf"^{name}(\{{.*\}})? (\S+)$", text, re.M)}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("binary")
    p.add_argument("folder")
    p.add_argument("--clients", type=int, default=100)
    p.add_argument("--seconds", type=float, default=600)
    args = p.parse_args()
    server, base = serve(args.binary, args.folder, KEY, CONTEXT, sequences=8, waiting=64)
    threading.Thread(target=server.stderr.read, daemon=True).start()
    host, port = re.search(r"http://(.*):(\d+)/", base).groups()
    alone = Client(host, int(port), None, random.Random(0))
    texts = []
    for n in range(12):
        body = {"model": "tiny", "prompt": "gold and silver " * (1 + n * n % 17), "max_tokens": 5 + 7 * n % 60, "seed": 1 + n // 6, "temperature": 0.8}
        if n < 6:
            body["max_tokens"] = 20
        texts.append((body, alone.answered(C, body, 200)["choices"][0]["text"]))
    came, wrong, lock = collections.Counter(), [], threading.Lock()
    until = time.monotonic() + args.seconds

    def run(n):
        r = random.Random(n)
        client = Client(host, int(port), texts, r)
        while time.monotonic() < until and server.poll() is None:
            what = r.choices(list(SHARES), list(SHARES.values()))[0]
            try:
                said = getattr(client, what)()
            except Exception as e:
                said = f"WRONG {what}"
                with lock:
                    wrong.append(f"{what}: {type(e).__name__} {e}")
            with lock:
                came[said] += 1

    threads = [threading.Thread(target=run, args=(n,)) for n in range(args.clients)]
    for t in threads:
        t.start()
    used = []
    while any(t.is_alive() for t in threads):
        time.sleep(1)
        used.append(memory(server.pid))
    time.sleep(1)
    codes, left = metric(host, port, "athanor_api_requests_total"), metric(host, port, "athanor_api_texts")[""]
    server.send_signal(signal.SIGTERM)
    code = server.wait(timeout=30)
    quarter = len(used) // 4
    second, last = max(used[quarter : 2 * quarter]), max(used[3 * quarter :])
    print(*(f"{n} {what}" for what, n in sorted(came.items())), sep=", ")
    print("answers by status:", *(f"{k} {v:.0f}" for k, v in sorted(codes.items())))
    print(f"memory: at most {second / 2**20:.1f} MiB in the second quarter, {last / 2**20:.1f} in the last; texts left {left:.0f}; exit code {code}")
    for line in wrong[:10]:
        print("WRONG", line[:500])
    bad = len(wrong) + (left != 0) + (code != 0) + (last > 1.1 * second + (8 << 20)) + any('"5' in k for k in codes)
    print(f"{args.clients} clients, {args.seconds:.0f} s:", "as it should be" if bad == 0 else f"{bad} faults")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
