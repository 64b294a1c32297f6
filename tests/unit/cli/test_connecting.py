"""A command's connection, and what is said where there is none."""

import pytest

from hayrunner.cli.connecting import connect, shown_servers
from hayrunner.cli.exits import Unreachable
from hayrunner.embedded import EmbeddedServer
from hayrunner.errors import ConfigurationError
from hayrunner.settings import load_settings


async def test_a_server_that_is_not_there_is_named_with_what_to_do() -> None:
    settings = load_settings(nats_url="nats://me:secret@127.0.0.1:1")
    with pytest.raises(Unreachable) as caught:
        await connect(settings, timeout_s=0.3)
    message = str(caught.value)
    assert "nats://127.0.0.1:1 " in message
    assert "secret" not in message
    assert "--nats" in message


async def test_refused_credentials_are_told_from_an_absent_server() -> None:
    async with EmbeddedServer(arguments=("--user", "me", "--pass", "right")) as server:
        wrong = load_settings(nats_url=server.url, nats_user="me", nats_password="wrong")
        with pytest.raises(Unreachable, match="refuses these credentials"):
            await connect(wrong, timeout_s=0.5)
        right = load_settings(nats_url=server.url, nats_user="me", nats_password="right")
        async with await connect(right) as client:
            assert client.connection.is_connected


async def test_a_token_is_taken_from_the_settings() -> None:
    async with EmbeddedServer(arguments=("--auth", "a-token")) as server:
        settings = load_settings(nats_url=server.url, nats_token="a-token", namespace="mine")
        async with await connect(settings) as client:
            assert client.namespace == "mine"


async def test_a_certificate_that_cannot_be_read_is_a_mistake_in_the_settings() -> None:
    settings = load_settings(nats_tls_ca="/does/not/exist.pem")
    with pytest.raises(ConfigurationError, match="HAYRUNNER_NATS_TLS"):
        await connect(settings, timeout_s=0.3)


def test_passwords_in_addresses_are_not_shown() -> None:
    settings = load_settings(nats_url="nats://u:p@one:4222, two:4222,tls://t@three")
    assert shown_servers(settings) == "nats://one:4222, nats://two:4222, tls://three"
