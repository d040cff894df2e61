"""The certificates, users and settings of a secured broker, without a broker."""

import os
import stat
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from headway.broker import LocalBroker
from headway.broker.certificates import Authority, write_private
from headway.broker.node import Node
from headway.broker.properties import server_properties
from headway.broker.security import Security
from headway.errors import ConfigError, LocalBrokerError
from headway.kafka.acls import Acl


@pytest.fixture
def security(tmp_path: Path) -> Security:
    """Those of a new cluster, in a directory whose name openssl's files would take for a variable and a comment."""
    made = Security(tmp_path / "of $HOME # ours")
    made.make()
    made.renew("127.0.0.1:9001", "127.0.0.1:9002")
    return made


def verify(authority: Authority, certificate: Path, *options: str) -> bool:
    command = ["openssl", "verify", "-CAfile", str(authority.certificate), *options, str(certificate)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_all_files_are_their_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        security = Security(tmp_path / "security")
        security.make()
        security.renew("127.0.0.1:9001", "127.0.0.1:9002")
    finally:
        os.umask(before)
    assert stat.S_IMODE(security.directory.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in security.directory.iterdir()}
    assert len(modes) > 5
    assert set(modes.values()) == {0o600}


def test_a_certificate_is_good_for_its_hosts_and_no_others(security: Security) -> None:
    broker = security.directory / "headway-broker.pem"
    assert verify(security.authority, broker, "-verify_ip", "127.0.0.1", "-purpose", "sslserver")
    assert verify(security.authority, broker, "-verify_hostname", "localhost")
    assert not verify(security.authority, broker, "-verify_ip", "127.0.0.2")
    assert not verify(security.authority, broker, "-verify_hostname", "example.com")


def test_a_certificate_of_another_authority_or_past_its_end_is_none(security: Security, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    other.make()
    assert not verify(other, security.directory / "app.pem")
    assert verify(security.authority, security.directory / "app.pem")
    security.authority.issue("app", tmp_path / "expired.pem", lifetime=timedelta(seconds=-1))
    assert not verify(security.authority, tmp_path / "expired.pem")


def test_authority_and_passwords_stay_when_certificates_are_renewed(security: Security) -> None:
    before = {file.name: file.read_bytes() for file in security.directory.iterdir()}
    again = Security(security.directory)
    again.make()
    again.renew("127.0.0.1:9001", "127.0.0.1:9002")
    after = {file.name: file.read_bytes() for file in security.directory.iterdir()}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"headway-broker.pem", "admin.pem", "app.pem"}


def test_an_authority_that_was_lost_is_not_made_anew_behind_the_users_back(security: Security) -> None:
    (security.directory / "ca.key").unlink()
    with pytest.raises(LocalBrokerError, match=r"are missing\. Restore .* from a backup, or delete it"):
        security.renew("127.0.0.1:9001", "127.0.0.1:9002")


def test_each_user_has_a_password_of_its_own(security: Security) -> None:
    passwords = {security.client_config(user, "")["sasl.password"] for user in security.users}
    assert len(passwords) == len(security.users) == 2
    assert all(len(password) == 32 for password in passwords)


def test_the_arguments_of_the_format_are_gone_when_it_was_interrupted(security: Security) -> None:
    def interrupted() -> None:
        with security.format_arguments():
            assert security.client_config("app", "")["sasl.password"] in security.format_file.read_text()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not security.format_file.exists()


def test_no_secret_is_in_the_properties_of_a_node(security: Security) -> None:
    node = Node(1, 9001, 9003, security.directory, tls_port=9002)
    properties = server_properties(node, [node], security.directory, security.server_properties())
    assert properties["listeners"] == ("SASL_SSL://127.0.0.1:9001,SSL://127.0.0.1:9002,CONTROLLER://127.0.0.1:9003")
    text = str(properties)
    assert "PRIVATE KEY" not in text
    assert not [user for user in security.users if security.client_config(user, "")["sasl.password"] in text]


def test_names_that_cannot_be_a_users_are_refused(security: Security) -> None:
    for name in ("", "-x", "a,b", "a/b", "..", "é", "a\n", "x" * 61):
        with pytest.raises(ConfigError, match="it must be 1 to 60 letters"):
            security.require_new(name)
    for name in ("app", "admin", "headway-broker"):
        with pytest.raises(LocalBrokerError, match=f"already has a user '{name}'"):
            security.require_new(name)
    with pytest.raises(LocalBrokerError, match="has no user 'nobody', only admin, app"):
        security.client_config("nobody", "")


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_private(file, b"old")
    with pytest.raises(TypeError):
        write_private(file, "no bytes")  # type: ignore[arg-type]
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_words_that_are_none_of_kafkas_are_refused_in_a_sentence() -> None:
    with pytest.raises(
        ConfigError, match=r"The operation of an ACL cannot be 'Wirte'\. Choose one of all, read, write"
    ):
        Acl("app", "Wirte", "Topic", "orders").binding()
    with pytest.raises(ConfigError, match=r"The resource of an ACL cannot be 'Table'\. Choose one of topic, group"):
        Acl("app", "Write", "Table", "orders").binding()
    assert Acl("app", "IDEMPOTENT_WRITE", "cluster", "c").binding() == (
        Acl("app", "IdempotentWrite", "Cluster", "c").binding()
    )


def test_without_openssl_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalBrokerError, match="needs the program openssl"):
        Authority(tmp_path).make()
    assert list(tmp_path.iterdir()) == []


def test_a_broker_without_security_has_no_users(tmp_path: Path) -> None:
    broker = LocalBroker(data_dir=tmp_path)
    for call in (
        lambda: broker.grant("app", "Read", "Topic", "orders"),
        lambda: broker.add_user("relay"),
        lambda: broker.client_config("app"),
        broker.config_file,
    ):
        with pytest.raises(
            LocalBrokerError, match=r"Start a secured broker with secure=True \(`headway broker start --secure`\)"
        ):
            call()
