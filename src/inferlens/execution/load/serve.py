"""Serve the model in this folder over HTTP, with the batching and the instances that were measured.

    python serve.py [PORT]

POST /infer with an .npz file that has one array for each input of one request, without the batch; the answer is an .npz
file of its outputs. GET /model describes the inputs. It needs NumPy and what the scripts of the model need.
"""

import contextlib
import io
import json
import multiprocessing
import queue
import runpy
import sys
import threading
import time
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent
LIMIT = 256 << 20  # bytes of a request


class Batcher:
    """Requests that wait, and a thread for each instance that takes batches of them."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self._waiting: queue.Queue[tuple[dict[str, Any], Future[list[Any]]]] = queue.Queue(settings["queue"])
        context = multiprocessing.get_context("spawn")
        for _ in range(settings["instances"]):
            connection, child_connection = context.Pipe()
            context.Process(target=work, args=(child_connection, settings), daemon=True).start()
            connection.recv()  # it is ready
            threading.Thread(target=self._feed, args=(connection,), daemon=True).start()

    def infer(self, inputs: dict[str, Any]) -> list[Any]:
        """Return the outputs of one request. Raises queue.Full if too many wait."""
        answer: Future[list[Any]] = Future()
        self._waiting.put_nowait((inputs, answer))
        return answer.result()

    def _feed(self, instance: Connection) -> None:
        while True:
            batch = [self._waiting.get()]
            end = time.perf_counter() + self.settings["wait"]
            while len(batch) < self.settings["max_batch"]:
                try:
                    remaining = end - time.perf_counter()
                    batch.append(self._waiting.get(remaining > 0, max(remaining, 0)))
                except queue.Empty:
                    break
            try:
                instance.send([inputs for inputs, _ in batch])
                outputs = instance.recv()
            except (EOFError, OSError):
                outputs = RuntimeError("the instance has ended")
            for row, (_, answer) in enumerate(batch):
                if isinstance(outputs, Exception):
                    answer.set_exception(outputs)
                else:
                    answer.set_result([output[row] for output in outputs])


def work(requests: Connection, settings: dict[str, Any]) -> None:
    """Answer batches in a process of its own. A batch is padded to the next prepared size."""
    scripts = {size: runpy.run_path(str(FOLDER / f"batch-{size}" / "run.py")) for size in settings["sizes"]}
    for script in scripts.values():
        arrays(script["run"](*script["inputs"]))
    requests.send("ready")
    while True:
        batch = requests.recv()
        size = next(prepared_size for prepared_size in settings["sizes"] if prepared_size >= len(batch))
        try:
            rows = [*batch, *[batch[-1]] * (size - len(batch))]
            stacked = [
                np.stack([row[name] for row in rows]) if batched else rows[0][name]
                for name, batched in settings["inputs"].items()
            ]
            requests.send(arrays(scripts[size]["run"](*map(like, scripts[size]["inputs"], stacked))))
        except Exception as error:
            requests.send(RuntimeError(f"{type(error).__name__}: {error}"))


def like(example: Any, array: Any) -> Any:
    """Return an array as an input of the kind that the script takes."""
    if isinstance(example, np.ndarray):
        return array.astype(example.dtype)
    import torch

    return torch.empty_like(example).copy_(torch.from_numpy(array))


def arrays(outputs: Any) -> list[Any]:
    """Return outputs as arrays on the host."""
    values = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return [value if isinstance(value, np.ndarray) else value.float().cpu().numpy() for value in values]


class Handler(BaseHTTPRequestHandler):
    """Answers to HTTP requests."""

    batcher: Batcher
    protocol_version = "HTTP/1.1"  # connections stay open

    def do_GET(self) -> None:
        self._answer(200, json.dumps(self.batcher.settings).encode(), "application/json")

    def do_POST(self) -> None:
        try:
            size = int(self.headers.get("Content-Length", 0))
            if not 0 < size <= LIMIT:
                raise ValueError("the request is empty or too large")
            with np.load(io.BytesIO(self.rfile.read(size)), allow_pickle=False) as file:
                inputs = {name: file[name] for name in self.batcher.settings["inputs"]}
            outputs = self.batcher.infer(inputs)
        except queue.Full:
            return self._answer(503, b"too many requests wait", "text/plain")
        except Exception as error:
            code = 400 if isinstance(error, (ValueError, KeyError, OSError)) else 500
            return self._answer(code, str(error).encode(), "text/plain")
        body = io.BytesIO()
        np.savez(body, **{f"output{index}": output for index, output in enumerate(outputs)})
        return self._answer(200, body.getvalue(), "application/octet-stream")

    def _answer(self, code: int, body: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    """Serve on this machine until interrupted."""
    settings = json.loads((FOLDER / "serve.json").read_text("utf-8"))
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    Handler.batcher = Batcher(settings)
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        print(f"Serving {settings['model']} at http://127.0.0.1:{server.server_port}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
