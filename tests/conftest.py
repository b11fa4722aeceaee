"""Shared by the tests of the whole program: the binary, the data, short ways to run it."""

import os
import pathlib
import subprocess

import pytest

from runs import LONG_S

ROOT = pathlib.Path(__file__).resolve().parent.parent
TRAINER = ROOT / "build" / "trainer"
MNIST_FILES = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: it measures time, so that nothing else may run meanwhile")
    config.addinivalue_line("markers", "races: it takes a build with ThreadSanitizer (make test-threads)")
    config.addinivalue_line("markers", "deploy: it runs schedulers and installers of others (make test-deploy)")
    config.addinivalue_line("markers", "full(but=ids): in `make test-full` only, except the variants with those ids")
    config.addinivalue_line("markers", "xdist_group(name): tests that one process runs, one after another")


# The longest tests start first, so that nobody waits for them at the end.
LONG = ("test_rollout_fleet.py", "test_chaos.py", "test_rollout_live.py", "test_rollout_absent.py", "test_rollout",
        "test_hostile.py", "test_streaming.py", "test_aarch64.py", "test_cluster_faults.py")


FULL = os.environ.get("TRAINER_TEST_FULL") == "1"


def pytest_collection_modifyitems(items):
    for item in items:
        mark = None if FULL else item.get_closest_marker("full")
        if mark and ("but" not in mark.kwargs or item.callspec.id not in mark.kwargs["but"]):
            item.add_marker(pytest.mark.skip(reason="in make test-full"))
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: next((i for i, name in enumerate(LONG) if item.path.name.startswith(name)),
                                         len(LONG)))


@pytest.fixture(scope="session")
def root():
    """The top of the source tree."""
    return ROOT


@pytest.fixture(scope="session")
def full():
    """True in `make test-full`: repeat random tests more often."""
    return FULL


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory):
    """The folder for screenshots of pages: TRAINER_SCREENSHOTS, if set."""
    folder = pathlib.Path(os.environ.get("TRAINER_SCREENSHOTS", tmp_path_factory.mktemp("screenshots")))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def trainer():
    """Path of the binary under test (TRAINER_BINARY names another one, a sanitizer build say)."""
    path = pathlib.Path(os.environ.get("TRAINER_BINARY", TRAINER))
    assert path.exists(), f"{path} is missing: run make"
    return str(path)


@pytest.fixture(scope="session")
def clocked():
    """Path of the binary whose wall clock tests can set (tests/clocks.py); None if TRAINER_BINARY names another one."""
    path = TRAINER.parent / "clocked" / "trainer"
    assert path.exists(), f"{path} is missing: run make test"
    return None if "TRAINER_BINARY" in os.environ else str(path)


@pytest.fixture(scope="session")
def mnist():
    """Folder of the real MNIST; TRAINER_MNIST names it."""
    folder = pathlib.Path(os.environ.get("TRAINER_MNIST", ROOT / ".." / "shared" / "data" / "mnist")).resolve()
    for name in MNIST_FILES:
        if not (folder / name).exists() and not (folder / f"{name}.gz").exists():
            pytest.skip(f"no MNIST at {folder}; TRAINER_MNIST names its folder")
    return str(folder)


@pytest.fixture
def run(trainer, tmp_path):
    """run("eval", "--flag=1", status=0): runs the binary in an empty folder, checks its exit status."""

    def run_trainer(*arguments, status=0, timeout=LONG_S, cwd=tmp_path, env=None, input=None):
        result = subprocess.run(
            [trainer, *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if status is not None:
            assert result.returncode == status, (
                f"{' '.join(map(str, arguments))}: status {result.returncode}, not {status}\n"
                f"{result.stdout}{result.stderr}"
            )
        return result

    return run_trainer
