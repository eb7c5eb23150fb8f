#!/usr/bin/env python3
"""Drives the page of `athanor watch` in a real browser, as a user would, and checks what each view shows.

    go build -o /tmp/athanor ./cmd/athanor
    tools/watch_browser.py /tmp/athanor [RUN...] [--pictures FOLDER] [--live RUN]

Without RUN, runs are made up, ten of 100,000 steps, one of them with a spike of a single step. Needs Playwright
(pip install playwright) and a Chromium (`playwright install chromium`, or one that is on the PATH). Where there is none,
it says so and ends with code 0: nothing is wrong. Exits with 1 if the page is.
"""
import argparse, json, math, os, random, re, shutil, subprocess, sys, tempfile, time

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sys.exit(print("skipped: Playwright is not installed") or 0)


def made_up(folder, runs=10, steps=100_000, spike=77_777):
    """Writes runs, and returns the loss of the spike."""
    for r in range(runs):
        rng = random.Random(r)
        path = os.path.join(folder, f"run-{r}")
        os.makedirs(path)
        with open(os.path.join(path, "config.yaml"), "w") as f:
            f.write(f"max_steps: {steps}\nlearning_rate: {1e-3 * (r + 1):g}\nlimits:\n  device: {r % 2 * 64 + 64}MiB\nseed: 1\n")
        with open(os.path.join(path, "metrics.jsonl"), "w") as f:
            for i in range(1, steps + 1):
                loss = 7 * (i + 20) ** -0.12 + 0.05 * rng.random() + 0.02 * r
                if r == 3 and i == spike:
                    loss = 12.5
                norm = 1 + rng.random()
                seconds = 0.1 * (1 + 0.1 * rng.random())
                row = {"step": i, "tokens": i * 1024, "loss": loss, "learning_rate": 1e-3 * (r + 1) * 0.5 * (1 + math.cos(math.pi * i / steps)),
                       "grad_norm": norm, "step_seconds": seconds, "predicted_step_seconds": 0.1, "tokens_per_second": 1024 / seconds, "mfu": 0.04 / seconds}
                if i % 10_000 == 0:
                    row["val_loss"] = loss + 0.1
                if r == 3 and i == spike:
                    row["alerts"] = [{"rule": "outlier", "step": i, "firing": True, "text": "outlier: made up"}]
                f.write(json.dumps(row, separators=(",", ":")) + "\n")
        with open(os.path.join(path, "samples.jsonl"), "w") as f:
            f.write(json.dumps({"step": steps, "prompt": "Once", "text": f"Once <b>upon</b> run {r}"}) + "\n")
    return 12.5


class Page:
    def __init__(self, page, address, pictures):
        self.page, self.pictures, self.errors = page, pictures, []
        page.on("console", lambda m: m.type in ("error", "warning") and self.errors.append(m.text))
        page.on("pageerror", lambda e: self.errors.append(str(e)))
        page.on("request", lambda r: r.url.startswith(address) or self.errors.append("asks elsewhere: " + r.url))
        page.goto(address)

    def shot(self, name):
        if self.pictures:
            self.page.wait_for_timeout(400)
            self.page.screenshot(path=os.path.join(self.pictures, name + ".png"))

    def until(self, holds, seconds=10):
        """Waits for an expression to hold. (wait_for_function needs eval, which the page forbids.)"""
        end = time.time() + seconds
        while not self.page.evaluate(holds):
            if time.time() > end:
                return False
            self.page.wait_for_timeout(100)
        return True

    def check(self, what, holds):
        print(("ok     " if holds else "WRONG  ") + what)
        if not holds:
            self.errors.append(what)


def drive(p, spike, live):
    page = p.page
    began = time.time()
    page.wait_for_selector("#charts .uplot canvas")
    p.check(f"curves are there after {time.time() - began:.1f} s", True)
    titles = page.locator(".chart h3").all_inner_texts()
    p.check("there are pictures of loss, rate, norm, tokens per second and MFU", all(any(t.startswith(w) for t in titles) for w in ("Loss", "Learning rate", "Gradient norm", "Tokens per second", "MFU")))
    curves = lambda title: page.evaluate("t => charts.get(t).curves.map(c => c.key)", title)
    runs = page.locator("#runs li").count()
    p.check(f"rates of {runs} runs are drawn, measured and predicted", all(p.until(f"charts.get('Tokens per second').curves.filter(c => c.key === '{k}').length === {runs}") for k in ("tokens_per_second", "predicted_tokens_per_second")))
    if spike:
        p.check("validations are drawn", curves("Loss").count("val_loss") == runs)
        most = page.evaluate("Math.max(...charts.get('Loss').curves.flatMap(c => c.y))")
        p.check(f"the spike of one step in 100,000 is drawn ({most})", most == spike)
        points = page.evaluate("charts.get('Loss').curves.reduce((n, c) => n + c.x.length, 0)")
        p.check(f"of 1,000,000 steps {points} points are sent", points < 40_000)
    p.shot("curves")
    box = page.locator(".chart .u-over").first.bounding_box()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 50)
    p.check("the pointer reads values", re.search(r"\d", page.locator(".chart .tip").first.inner_text()) is not None)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 60, steps=5)
    page.mouse.up()
    p.check("dragging zooms", p.until("state.zoom !== null && charts.get('Loss').plot.scales.x.min > 1"))
    p.shot("zoomed")
    page.keyboard.press("0")
    p.check("key 0 shows all", page.evaluate("state.zoom === null"))
    page.keyboard.press("3")
    p.check("key 3 compares", page.locator("#table tr").count() >= 2)
    if spike:
        differ = page.locator("#diff tr td:first-child").all_inner_texts()
        p.check(f"configurations differ in {differ}", differ == ["learning_rate", "limits.device"])
    p.shot("compare")
    page.keyboard.press("2")
    page.wait_for_timeout(600)
    if page.evaluate("step.data !== null"):
        p.check("the step has blocks", page.evaluate("step.blocks.length > 0"))
        p.check("the map has boxes", page.evaluate("step.boxes.length > 0"))
        page.locator("#map").scroll_into_view_if_needed()
        b = page.evaluate("(() => { const b = step.boxes[0], r = document.getElementById('map').getBoundingClientRect(); return [r.x + Math.max(b.x, 80) + Math.min(b.w, 10) / 2, r.y + b.y + b.h / 2] })()")
        page.mouse.move(*b)
        p.check("a box says what it is", " at " in page.locator("#box").inner_text())
        before = page.locator("#box").inner_text()
        page.locator("#map").press("ArrowRight")
        p.check("arrow keys go to another box", page.locator("#box").inner_text() != before)
        p.check("ranks can be chosen", page.locator("#rank option").count() == page.evaluate("new Set(step.data.runs.map(r => r.rank)).size"))
        p.check("planned and reached bytes are in the table", page.locator("#bytes tr").count() > 2)
        p.check("the roofline is drawn, with what binds the calls", p.until("document.getElementById('roof').naturalWidth > 100") and page.locator("#kinds tr").count() > 3)
        p.shot("step")
    page.keyboard.press("5")
    page.wait_for_timeout(300)
    if spike:
        text = page.locator("#texts article", has_text="run-7").inner_text()
        p.check("key 5 shows texts, as text", "Once <b>upon</b> run 7" in text and page.locator("#texts b").count() == 0)
    p.shot("samples")
    page.keyboard.press("4")
    if spike:
        text = page.locator("#alertlist").inner_text()
        p.check("key 4 shows the alert, and the tab that it fires", "outlier: made up" in text and "run-3" in text and "(1)" in page.locator("#tab-alerts").inner_text())
    p.shot("alerts")
    page.keyboard.press("1")
    if live:
        told = lambda: page.locator("#runs li", has_text=live).inner_text(timeout=60_000)
        before, until = told(), time.time() + 60
        while told() == before and time.time() < until:
            page.wait_for_timeout(200)
        p.check("a run in progress updates: " + told().splitlines()[-1], told() != before)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("athanor")
    a.add_argument("runs", nargs="*")
    a.add_argument("--pictures")
    a.add_argument("--live", help="name of a run that is in progress")
    o = a.parse_args()
    if o.pictures:
        os.makedirs(o.pictures, exist_ok=True)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as pw:
        spike = None
        if not o.runs:
            spike, o.runs = made_up(folder), [folder]
        found = shutil.which("chromium") or shutil.which("google-chrome")
        try:
            browser = pw.chromium.launch(executable_path=found, args=["--no-sandbox"]) if found else pw.chromium.launch()
        except Exception as e:
            print("skipped: there is no browser:", str(e).splitlines()[0])
            return 0
        server = subprocess.Popen([o.athanor, "watch", "--listen", "127.0.0.1:0", *o.runs], stderr=subprocess.PIPE, text=True)
        address = re.search(r"http://\S+", server.stderr.readline()).group()
        try:
            for name, settings in {
                "light": dict(viewport={"width": 1280, "height": 900}, color_scheme="light"),
                "dark": dict(viewport={"width": 1280, "height": 900}, color_scheme="dark"),
                "phone": dict(viewport={"width": 390, "height": 844}, device_scale_factor=2, has_touch=True, is_mobile=True, color_scheme="light"),
            }.items():
                print(name)
                pictures = o.pictures and os.path.join(o.pictures, name)
                if pictures:
                    os.makedirs(pictures, exist_ok=True)
                p = Page(browser.new_context(**settings).new_page(), address, pictures)
                drive(p, spike, o.live)
                wide = p.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
                p.check("nothing is wider than the window", wide)
                for e in p.errors:
                    print("ERROR ", e)
                wrong += len(p.errors)
        finally:
            server.terminate()
            server.wait()
            browser.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
