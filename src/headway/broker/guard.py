"""The guard: a process that stops a broker when the Python process that started the broker ends for any reason."""

import subprocess
import sys
from pathlib import Path

# `read` returns when the pipe is closed. The kernel closes it even if the process is killed. Only then does the guard
# start Python; until then it is a sleeping shell.
_WAIT = 'read _; exec "$@"'
_STOP = "import sys; from headway.broker import LocalBroker; LocalBroker.attach(sys.argv[1]).stop()"


class Guard:
    """Watches this process, and stops the broker in `data_dir` if the process dies before `release` is called."""

    def __init__(self, data_dir: Path) -> None:
        command = ["sh", "-c", _WAIT, "headway-guard", sys.executable, "-c", _STOP, str(data_dir)]
        self._process = subprocess.Popen(  # noqa: S603 - the arguments are our own
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def release(self) -> None:
        """End the guard without stopping the broker."""
        with self._process:
            self._process.kill()
