"""The command `conveyor`: parse, call the sub-command, report a user's mistake as one sentence and exit code 2."""

import argparse
import contextlib
import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap

from conveyor import commands
from conveyor.errors import INTERRUPTED, USER_ERROR, UserError, did_you_mean
from conveyor.files import FULL, why
from conveyor.interrupt import heard_in_imports
from conveyor.layout import let_idle_threads_sleep
from conveyor.models import user_module
from conveyor.monitor.progress import folded, say
from conveyor.options.parser import Parser, width
from conveyor.processes import print_any_text
from conveyor.remote import is_address
from conveyor.version import __version__

EXTRAS = {
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime", "openvino", "nncf"), "export"),
    **dict.fromkeys(("starlette", "uvicorn", "httptools", "uvloop", "orjson", "prometheus_client", "grpc"), "serve"),
    **dict.fromkeys(("google", "httpx"), "serve"),
    "matplotlib": "plot",
    "wandb": "track",
    "optuna": "sweep",
}
"""Which extra of the package brings a library that a command may need."""


UNUSABLE = (
    errno.EACCES, errno.EPERM, errno.EEXIST, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, *FULL,
)  # fmt: skip
"""Errors of the system that say what is wrong with a path, whichever command meets it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code."""
    _log_to_standard_error()
    let_idle_threads_sleep()
    print_any_text()
    return exit_code("conveyor", _dispatch, argv)


def exit_code(program: str, act: Callable[[list[str]], int], argv: Sequence[str] | None = None) -> int:
    """The exit code of `act`, called with a program's words; a user's mistake is one sentence in the program's name."""
    try:
        with heard_in_imports():
            return act(list(sys.argv[1:] if argv is None else argv))
    except UserError as error:
        return _refused(program, str(error))
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output closed the pipe (`conveyor models | head`): exit without an error, flush nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is None or error.errno not in UNUSABLE:
            raise
        name = os.fsdecode(error.filename)
        return _refused(program, f"cannot use {name[:200]}: {why(error)}; choose another path")


def _refused(program: str, sentence: str) -> int:
    from conveyor.launch.failure import in_step

    # Folded for people; what reads the output of an older program expects one line.
    say(f"{program}: error: {sentence}", stream=sys.stderr, whole=program != "conveyor")
    return in_step(USER_ERROR, os.environ)


class _Folded(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return folded(super().format(record))


def _log_to_standard_error() -> None:
    logging.basicConfig(level=logging.WARNING)
    for handler in logging.getLogger().handlers:
        if type(handler.formatter) is logging.Formatter:
            handler.setFormatter(_Folded("%(message)s"))


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        if len(words) > 1 and words[0] == "help":
            return _dispatch([words[1], "--help"])
        print(_overview())
        return 0
    if words[0] in ("-V", "--version"):
        print(f"conveyor {__version__}")
        return 0
    if words[0] == "--print-completion":
        return _print_completion(words[1:])
    name = words[0]
    if name not in commands.ALL:
        raise UserError(f"there is no command {name!r}{did_you_mean(name, commands.ALL)}; see conveyor --help")
    arguments = parser_of(name).parse_args(words[1:])
    module = commands.load(name)
    given = getattr(arguments, "given", None) or {}
    user_module.admit_options(given)
    try:
        with _local(name, arguments):
            code = module.run(arguments)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise UserError(f"conveyor {name} needs {error.name}: pip install 'conveyor[{extra}]'") from None
    assert isinstance(code, int)
    return code


@contextlib.contextmanager
def _local(name: str, arguments: argparse.Namespace) -> Iterator[None]:
    """Addresses on object stores become local folders for the time of the command; see `remote.front`."""
    given = getattr(arguments, "given", None) or {}
    plain = {key: value for key, value in vars(arguments).items() if key != "given"}
    values = (*plain.values(), *given.values())
    words = [one for value in values for one in (value if isinstance(value, list | tuple) else [value])]
    if name == "launch" or not any(map(is_address, words)):
        yield
        return
    from conveyor.launch.rank import is_main
    from conveyor.remote.front import local

    with local(name, plain | given, writes=is_main()) as found:
        vars(arguments).update({key: found[key] for key in plain if key not in given})
        if given:
            arguments.given = {key: found[key] for key in given}
        yield


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of one sub-command."""
    module = commands.load(name)
    parser = Parser(
        prog=f"conveyor {name}",
        description=module.HELP,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=width()),
    )
    module.add_arguments(parser)
    return parser


def _overview() -> str:
    lines = [
        "usage: conveyor COMMAND [options]",
        "",
        "Train, validate, benchmark, export and serve convolutional image classifiers.",
    ]
    for title, names in commands.NAMES.items():
        lines += ["", f"{title}:"]
        for name in names:
            lines += wrap(f"  {name:<10} {commands.load(name).HELP}", width(), subsequent_indent=" " * 13)
    lines += [
        "",
        "conveyor COMMAND --help explains one command, --version prints the version,",
        "--print-completion bash|zsh|tcsh prints a completion script for the shell.",
    ]
    return "\n".join(lines)


def _print_completion(words: list[str]) -> int:
    shells = ("bash", "zsh", "tcsh")
    if len(words) != 1 or words[0] not in shells:
        raise UserError(f"--print-completion needs a shell: one of {', '.join(shells)}")
    import shtab

    root = argparse.ArgumentParser(prog="conveyor")
    subparsers = root.add_subparsers()
    for name in commands.ALL:
        module = commands.load(name)
        module.add_arguments(subparsers.add_parser(name, help=module.HELP))
    print(shtab.complete(root, shell=words[0]))
    return 0
