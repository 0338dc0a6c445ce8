"""What the static audit looks for: names, and why each is unwelcome in a kernel file."""

from __future__ import annotations

# code -> title; rules/<code>-<title, lower case, hyphens>.md says what, why, example, mend
FINDINGS: dict[str, str] = {
    "A01": "identity key",
    "A02": "memoisation",
    "A03": "global state",
    "A04": "outside access",
    "A05": "file access",
}

IDENTITY_WHY = "says which tensor it is, not what it holds: a key of it hits only where a benchmark reuses tensors"
MEMO_WHY = "keeps a value from one call to the next: fast where inputs repeat, stale or useless in training"
ATTRIBUTE_WHY = "hangs a value on an object that outlives the call: a cache by another name"
GLOBAL_WHY = "changes the process for everyone in it, the measurement too"
FILE_WHY = "a kernel computes from its arguments; files carry results from one run to the next"

IDENTITY_ATTRIBUTES = frozenset(
    {"data_ptr", "untyped_storage", "storage", "_typed_storage", "_version", "_cdata", "__array_interface__"}
    | {"__cuda_array_interface__", "__weakref__"}
)

MEMOISERS = frozenset({"functools.lru_cache", "functools.cache", "functools.cached_property"})

# Annotations of values that a cache may be keyed on: no tensor hides behind them.
PLAIN_TYPES = frozenset(
    {"int", "float", "bool", "str", "bytes", "None", "tuple", "frozenset", "typing.Tuple", "typing.Optional"}
    | {"typing.Union", "typing.Literal", "torch.device", "torch.dtype", "torch.Size"}
)

# What reads an attribute whose name is a string.
GETTERS = frozenset({"getattr", "operator.attrgetter", "operator.methodcaller", "inspect.getattr_static"})
# Functions that write into their first argument, and methods that hang a function on a tensor.
SETTERS = frozenset(
    {"operator.setitem", "operator.iadd", "operator.ior", "dict.__setitem__", "list.append", "dict.update"}
)
HOOKS = frozenset({"register_hook", "register_post_accumulate_grad_hook", "register_prehook"})

# Methods by which a container is written.
MUTATORS = frozenset(
    {
        "send",
        "setdefault",
        "update",
        "pop",
        "popitem",
        "append",
        "appendleft",
        "extend",
        "insert",
        "add",
        "clear",
        "remove",
    }
    | {"discard", "move_to_end", "__setitem__", "put", "put_nowait"}
)

GLOBAL_CALLS = frozenset(
    {f"torch.{n}" for n in ("use_deterministic_algorithms", "set_deterministic_debug_mode", "set_num_threads")}
    | {f"torch.{n}" for n in ("set_float32_matmul_precision", "set_default_dtype", "set_default_device")}
    | {
        f"torch.{n}"
        for n in ("set_num_interop_threads", "set_flush_denormal", "set_warn_always", "manual_seed", "seed")
    }
    | {f"torch.{n}" for n in ("set_rng_state", "set_default_tensor_type", "autograd.set_detect_anomaly")}
    | {f"torch.cuda.{n}" for n in ("manual_seed", "manual_seed_all", "set_rng_state", "set_device", "set_stream")}
    | {f"torch.cuda.{n}" for n in ("set_per_process_memory_fraction", "set_sync_debug_mode")}
    | {f"os.{n}" for n in ("putenv", "unsetenv", "chdir", "umask", "nice", "sched_setaffinity")}
    | {f"os.environ.{n}" for n in ("update", "setdefault", "pop", "clear")}
    | {f"sys.{n}" for n in ("settrace", "setprofile", "setswitchinterval", "setrecursionlimit")}
    | {f"sys.path.{n}" for n in ("insert", "append", "extend")}
    | {"random.seed", "numpy.random.seed", "atexit.register", "warnings.filterwarnings", "warnings.simplefilter"}
    | {"sys.modules.update", "sys.modules.pop", "sys.modules.setdefault"}
)

_PROCESS = "starts or reaches other processes"
_NETWORK = "reaches the network"
_THREADS = "work outside the timed call: threads"
_INSIDE = "looks into or changes the running interpreter"
MODULES: dict[str, str] = (
    dict.fromkeys(("subprocess", "multiprocessing", "pty", "signal", "torch.multiprocessing"), _PROCESS)
    | dict.fromkeys(("socket", "urllib", "http", "requests", "ssl", "ftplib"), _NETWORK)
    | dict.fromkeys(("threading", "_thread", "concurrent", "asyncio", "queue"), _THREADS)
    | dict.fromkeys(("ctypes", "cffi", "mmap"), "reaches memory past the tensors it was given")
    | dict.fromkeys(("inspect", "gc", "importlib", "builtins", "dis", "unittest", "traceback"), _INSIDE)
    | {"weakref": IDENTITY_WHY, "contextvars": MEMO_WHY}
)
REFLECTION: dict[str, str] = {
    **dict.fromkeys(("eval", "exec", "compile", "__import__"), "code made from text escapes any reading of it"),
    **dict.fromkeys(("globals", "sys._getframe", "sys._current_frames", "sys.modules"), _INSIDE),
    **dict.fromkeys(("os.system", "os.popen", "os.fork", "os.execv", "os.kill", "os.posix_spawn"), _PROCESS),
}

FILE_MODULES = frozenset({"shutil", "tempfile", "pickle", "shelve", "sqlite3"})
FILE_CALLS = frozenset(
    {"open", "io.open", "torch.save", "torch.load", "numpy.load", "numpy.save", "numpy.savez", "numpy.fromfile"}
    | {"numpy.memmap", "torch.from_file"}
    | {f"os.{n}" for n in ("open", "write", "read", "remove", "unlink", "rename", "replace", "mkdir", "makedirs")}
    | {f"os.{n}" for n in ("listdir", "scandir", "walk", "symlink", "link", "truncate")}
)
FILE_METHODS = frozenset({"read_text", "write_text", "read_bytes", "write_bytes", "tofile"})
