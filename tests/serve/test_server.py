"""A real server on a port of this machine, as the command starts it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from tests.serve.conftest import TEXTS, running_server
from ultimate_embedder import open_output
from ultimate_embedder.errors import UsageError
from ultimate_embedder.serve import make_serve_config, serve

openai = pytest.importorskip("openai", reason="needs openai's client")


def test_the_client_of_openai_gets_the_vectors_of_the_collection(served_output: Path) -> None:
    with running_server(served_output) as address:
        client = openai.OpenAI(base_url=f"{address}v1", api_key="not needed", max_retries=0)
        assert "docs/tiny-bert" in {model.id for model in client.models.list()}
        answer = client.embeddings.create(model="docs/tiny-bert", input=TEXTS, extra_body={"input_type": "document"})
        vectors = np.array([each.embedding for each in answer.data])
        assert np.allclose(vectors, open_output(served_output)["docs"].vectors("tiny-bert"), atol=1e-5)
        assert answer.usage.total_tokens > 0
        with pytest.raises(openai.NotFoundError, match="There is no model 'gpt'"):
            client.embeddings.create(model="gpt", input="a")
        with pytest.raises(openai.BadRequestError, match="token ids"):
            client.embeddings.create(model="docs/tiny-bert", input=[1, 2])


def test_a_token_is_the_api_key_of_the_client_of_openai(served_output: Path) -> None:
    with running_server(served_output, token="correct-horse-battery") as address:
        base, _, token = address.partition("?token=")
        for key in (token, "wrong"):
            client = openai.OpenAI(base_url=f"{base}v1", api_key=key, max_retries=0)
            if key == token:
                assert list(client.models.list())
            else:
                with pytest.raises(openai.AuthenticationError, match="needs a token"):
                    client.models.list()


def test_a_signal_ends_the_command_while_a_page_is_open(served_output: Path) -> None:
    command = [sys.executable, "-m", "ultimate_embedder", "serve", str(served_output), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            with urllib.request.urlopen(f"{address}live", timeout=60) as stream:
                assert stream.readline() == b"event: parts\n"
                process.send_signal(signal.SIGTERM)
                out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err


def test_a_port_that_is_taken_is_answered_with_the_next_command(served_output: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = make_serve_config(served_output, port=port)
        with pytest.raises(UsageError, match=rf"port {port} of 127.0.0.1 is in use.*--port {port + 1}"):
            serve(config, print)


def test_what_is_no_output_is_refused_before_anything_listens(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not an output"):
        serve(make_serve_config(tmp_path), print)


def test_a_missing_extra_names_the_command_that_installs_it(
    served_output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ultimate_embedder.serve.PACKAGES", ("no_such_server",))
    with pytest.raises(UsageError, match=r"serve needs no_such_server: pip install 'ultimate-embedder\[serve\]'"):
        serve(make_serve_config(served_output), print)
