"""Keys and tokens are changed while the service is in use, and nobody is ever turned away."""

import signal
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from support.api_caller import ApiCaller
from support.server import ServerProcess, running_server, service
from support.timeouts import TIMEOUT_S, eventually

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGHUP is POSIX")
OLD, NEW = "o" * 48, "n" * 48


def reload(worker: ServerProcess) -> None:
    """Have a worker read its keys again, and wait until it has."""
    done = worker.output().count("secret_keys_")
    worker.process.send_signal(signal.SIGHUP)
    eventually(lambda: worker.output().count("secret_keys_") > done, worker.output)
    assert worker.process.poll() is None


def write_keys(path: Path, *keys: str) -> None:
    path.write_text("\n".join(keys) + "\n", "ascii")
    path.chmod(0o600)


@pytest.mark.long
def test_keys_rotate_under_load(tmp_path: Path, postgres_url: str) -> None:
    """Two workers on one database: the new key verifies everywhere before any worker signs."""
    env = {"FEDCLUST_DATABASE_URL": postgres_url}
    key = tmp_path / "shared" / "secret.key"
    key.parent.mkdir(mode=0o700)
    write_keys(key, OLD)
    data = ("--data-dir", str(key.parent))
    made = service("init", *data, env=env)
    assert made.returncode == 0, made.stderr
    before = made.stdout.split()[-1]
    with ExitStack() as stack:
        # The later --data-dir wins: both workers read the same key file.
        workers = [
            stack.enter_context(running_server(tmp_path / name, *data, env=env))
            for name in ("one", "two")
        ]
        tokens = [before]
        seen: Counter[int] = Counter()
        over = threading.Event()

        def keep_asking(worker: ServerProcess) -> None:
            with httpx.Client(
                base_url=worker.base_url, timeout=TIMEOUT_S, trust_env=False
            ) as client:
                while not over.is_set():
                    for token in tuple(tokens):
                        headers = {"Authorization": f"Bearer {token}"}
                        seen[client.get("/v1/whoami", headers=headers).status_code] += 1

        pool = stack.enter_context(ThreadPoolExecutor(len(workers)))
        asking = pool.map(keep_asking, workers)
        try:
            for keys in ((OLD, NEW), (NEW, OLD)):
                write_keys(key, *keys)
                for worker in workers:
                    reload(worker)
                    api = ApiCaller(worker.base_url, before)
                    name = f"site-{len(tokens)}"
                    api.register("sites", name)
                    tokens.append(api.tokens[name])
        finally:
            over.set()
        list(asking)
        assert set(seen) == {200}, seen
        assert len(tokens) == 5
        # What the old key signed goes with it; what the new one signed stays.
        write_keys(key, NEW)
        for worker in workers:
            reload(worker)
        for worker in workers:
            statuses = [worker.get("/v1/whoami", token).status_code for token in tokens]
            assert statuses == [401] * 3 + [200] * 2
        # Keys that cannot be used change nothing, and are told without being repeated.
        key.write_text("too-short\n", "ascii")
        reload(workers[0])
        assert "secret_keys_not_reloaded" in workers[0].output()
        key.unlink()
        reload(workers[0])
        assert not key.exists()
        assert workers[0].get("/v1/whoami", tokens[-1]).status_code == 200
        for worker in workers:
            assert not {"too-short", OLD, NEW} & set(worker.output().replace('"', " ").split())
