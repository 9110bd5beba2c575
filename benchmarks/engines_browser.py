"""Files in onnxruntime-web's WebGPU in Chromium: ``python -m benchmarks.engines_browser SCRIPT FOLDER NUMBER...``.

Chromium computes WebGPU with SwiftShader, on the processor, so this needs no graphics card.
"""

from __future__ import annotations

import base64
import functools
import http.server
import json
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from tools.browser import chromium

FLAGS = "--enable-unsafe-webgpu --use-webgpu-adapter=swiftshader"
LOAD = """
const done = arguments[arguments.length - 1], script = document.createElement('script');
script.onload = script.onerror = () => done(typeof ort !== 'undefined');
script.src = arguments[0];
document.body.append(script);
"""
RUN = """
const [model, feeds, done] = arguments;
answer(ort, 'webgpu', bytes(model), feeds).then(done);
"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def main(script: str, folder: str, *numbers: str) -> None:
    """Run each numbered file once in a fresh page, and write the outputs or the refusal beside it."""
    run = Path(__file__).with_name("engines.js").read_text(encoding="utf-8") + RUN
    serve = functools.partial(_Quiet, directory=Path(script).parent)
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server,
        tempfile.TemporaryDirectory() as profile,
        chromium(Path(profile), FLAGS, local=True) as browser,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.set_script_timeout(600)
        for number in numbers:
            place = Path(folder)
            entry = json.loads((place / f"{number}.json").read_text())
            browser.get(f"http://127.0.0.1:{server.server_port}/")
            if not browser.execute_async_script(LOAD, Path(script).name):
                raise OSError(f"{script} did not load")
            model = base64.b64encode(Path(entry["path"]).read_bytes()).decode()
            found = browser.execute_async_script(run, model, entry["feeds"])
            (place / f"{number}.out.json").write_text(json.dumps(found))
        server.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
