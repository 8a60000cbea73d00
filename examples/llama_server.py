"""llama.cpp's own server on the loopback, on one core: a real LLM server that needs no GPU.

    pip install xllamacpp gguf
    python examples/llama_server.py --port 8100
    python examples/llama_server.py --port 8100 --slots 4 --model FILE.gguf

OpenAI's chat completions, continuous batching, `/metrics` and `/slots`. Without --model a tiny model of random weights:
its text is nonsense, its timing is real. It serves first come, first served, and never refuses: who is not in one of
the slots waits.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

from llm_traffic_scheduler.simulation.arguments import Parser, whole

__all__ = ["llama_server", "missing", "model_file", "write_tiny_model"]

_CONTEXT: Final = 2048  # tokens per slot
_READY: Final = "ready "
_PATIENCE: Final = 120.0  # seconds, for a large model on a slow disk
_LAST_WORDS: Final = 400  # characters
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789.,:;!?-"
_SYLLABLES: Final = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
_TEMPLATE: Final = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}assistant: "


def missing(model: Path | None = None) -> str | None:
    """What to install before a server can be started, None if nothing."""
    needed = ["xllamacpp"] if model else ["xllamacpp", "gguf"]
    absent = [name for name in needed if importlib.util.find_spec(name) is None]
    return f"it needs {' and '.join(absent)}: pip install {' '.join(absent)}" if absent else None


def model_file(text: str) -> Path:
    """A file that begins as llama.cpp's models do.

    Raises:
        argparse.ArgumentTypeError: it does not, or cannot be read.
    """
    path = Path(text)
    try:
        with path.open("rb") as file:
            if file.read(4) == b"GGUF":
                return path
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot read {text!r}: {error.strerror}") from None
    raise argparse.ArgumentTypeError(f"must be a model in the format GGUF, got {text!r}")


@contextlib.contextmanager
def llama_server(model: Path | None = None, *, slots: int = 8) -> Iterator[str]:
    """A server on a free port, in a process of its own; its URL, without the API's `/v1`. It ends with the block.

    Raises:
        RuntimeError: it ended, or took two minutes, before it was ready; with the end of what it said.
    """
    command = [sys.executable, __file__, "--port", "0", "--slots", str(slots), "--until-stdin-ends"]
    command += ["--model", str(model)] if model else []
    with tempfile.TemporaryFile("w+") as log, _child(command, log) as child:
        too_late = threading.Timer(_PATIENCE, child.kill)
        too_late.start()
        try:
            assert child.stdout is not None
            said = next((line for line in child.stdout if line.startswith(_READY)), None)
        finally:
            too_late.cancel()
        if said is None:
            log.seek(0)
            words = " ".join(log.read()[-_LAST_WORDS:].split()) or "it said nothing"
            raise RuntimeError(f"the server did not become ready within {_PATIENCE:.0f} s, or ended: {words}")
        yield said.removeprefix(_READY).strip()


@contextlib.contextmanager
def _child(command: Sequence[str], log: IO[str]) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        yield child
    finally:
        # Asked politely, it waits for the clients that are still there.
        child.kill()
        child.communicate()


def write_tiny_model(path: Path, *, layers: int = 4, width: int = 256) -> None:
    """6 MB of random weights in the shape of a llama, with a vocabulary of letters and syllables."""
    import gguf

    writer: Any = gguf.GGUFWriter(path, "llama")
    heads = max(1, width // 64)
    for add, value in (
        (writer.add_context_length, 8192),
        (writer.add_embedding_length, width),
        (writer.add_block_count, layers),
        (writer.add_feed_forward_length, 2 * width),
        (writer.add_head_count, heads),
        (writer.add_head_count_kv, heads),
        (writer.add_rope_dimension_count, width // heads),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_file_type, 1),
    ):
        add(value)
    size = _add_vocabulary(writer)
    _add_weights(writer, layers, width, size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: Any) -> int:
    """Control tokens, the 256 bytes, letters, and words of up to two syllables; returns how many."""
    space = "\u2581"
    pieces = [space, *_LETTERS, *(space + one for one in _SYLLABLES)]
    pieces += [space + one + other for one in _SYLLABLES for other in _SYLLABLES[:10]]
    unknown, control, normal, byte = 2, 3, 1, 6
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{code:02X}>" for code in range(256)), *pieces]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([token.encode() for token in tokens])
    writer.add_token_scores([0.0] * (len(tokens) - len(pieces)) + [-float(rank) for rank in range(len(pieces))])
    writer.add_token_types([unknown, control, control] + [byte] * 256 + [normal] * len(pieces))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template(_TEMPLATE)
    return len(tokens)


def _add_weights(writer: Any, layers: int, width: int, vocabulary: int) -> None:
    import numpy as np

    rng = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        weights = (rng.standard_normal(shape) * 0.02).astype(np.float16) if shape else np.ones(width, np.float32)
        writer.add_tensor(f"{name}.weight", weights)

    add("token_embd", vocabulary, width)
    add("output_norm")
    add("output", vocabulary, width)
    for layer in range(layers):
        block = f"blk.{layer}"
        add(f"{block}.attn_norm")
        add(f"{block}.ffn_norm")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}.{name}", width, width)
        add(f"{block}.ffn_gate", 2 * width, width)
        add(f"{block}.ffn_up", 2 * width, width)
        add(f"{block}.ffn_down", width, 2 * width)


def _serve(port: int, slots: int, model: Path) -> Any:
    """The server, listening; it works on threads of its own until it is let go."""
    import xllamacpp

    given = xllamacpp.CommonParams()
    given.model.path = str(model)
    given.hostnames = ["127.0.0.1"]
    given.port = port
    given.n_parallel = slots
    given.n_ctx = _CONTEXT * slots
    given.cont_batching = given.endpoint_metrics = given.endpoint_slots = given.warmup = True
    given.n_batch, given.n_ubatch = 512, 256
    # With more than one thread it stalls for seconds where others want a core too.
    given.cpuparams.n_threads = given.cpuparams_batch.n_threads = 1
    given.ui = False
    given.cache_ram_mib = 0
    return xllamacpp.Server(given)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until interrupted."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=whole(0), default=8100, help="0: any that is free (%(default)s)")
    parser.add_argument("--slots", type=whole(1), default=8, help="requests in a batch (%(default)s)")
    parser.add_argument("--model", type=model_file, metavar="FILE.gguf", help="left out: tiny, of random weights")
    parser.add_argument("--until-stdin-ends", action="store_true", help="end with whoever started it")
    given = parser.parse_args(arguments)
    if lacks := missing(given.model):
        parser.error(lacks)
    with tempfile.TemporaryDirectory() as directory:
        model = given.model or Path(directory, "tiny.gguf")
        if given.model is None:
            write_tiny_model(model)
        try:
            server = _serve(given.port, given.slots, model)  # has read it, or keeps it open
        except RuntimeError as fault:
            parser.error(f"{fault} Is port {given.port} free, and {model} a language model? See above")
    print(f"{_READY}{server.listening_address}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        if given.until_stdin_ends:
            sys.stdin.read()
        else:
            threading.Event().wait()
    os._exit(0)  # the server's own end waits for every client


if __name__ == "__main__":
    main()
