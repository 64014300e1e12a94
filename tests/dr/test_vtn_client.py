"""Tokens, clocks, certificates and slow answers of a VTN, over real HTTP; and what doctor says of it."""

import ipaddress
import socket
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dispatcher.config import EventSourceConfig
from dispatcher.doctor import check_event_source
from dispatcher.dr.vtn_client import Limits, VtnClient, VtnError
from tests.dr.ven3_site import Ahead, Site, site_fixture, soon, vtn_fixture
from tests.dr.vtn3 import Vtn, cap

__all__ = ["site_fixture", "vtn_fixture"]


def test_a_token_is_renewed_before_its_end_and_when_it_is_not_taken(vtn: Vtn, site: Site) -> None:
    def fetched() -> int:
        return sum("POST /auth/token" in line for line in vtn.asked)

    vtn.program()
    site.poll(2)
    assert fetched() == 1
    vtn.tokens.clear()
    site.poll()
    assert (fetched(), site.ven.state().problem) == (2, None)
    site.ahead_s = 3545.0  # a minute before its end
    site.poll()
    assert (fetched(), site.ven.state().problem) == (3, None)


def test_a_token_server_that_fails_for_a_moment_changes_nothing(vtn: Vtn, site: Site) -> None:
    vtn.program()
    site.poll()
    site.ahead_s = 3545.0
    vtn.faults.status, vtn.faults.only = 500, "/auth"
    site.poll()
    assert site.ven.state().problem is None
    site.ahead_s = 3601.0
    site.poll()
    assert "HTTP 500" in str(site.ven.state().problem)


def test_a_wrong_secret_says_so(vtn: Vtn, site: Site) -> None:
    vtn.secret = "another"
    site.poll()
    assert "HTTP 401 (invalid_client)" in str(site.ven.state().problem)


def test_the_secret_is_not_sent_to_another_host(vtn: Vtn, site: Site) -> None:
    if vtn.version != "3.1":
        pytest.skip("3.0.1 has its token server at the VTN")
    vtn.faults.body, vtn.faults.only = b'{"tokenURL": "https://thief.example/token"}', "/auth/server"
    site.poll()
    assert "token_url = 'https://thief.example/token'" in str(site.ven.state().problem)
    assert not any("POST" in line for line in vtn.asked)


def test_a_clock_that_is_off_is_told_and_refuses_fast_classes(vtn: Vtn, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = Site(vtn, monkeypatch), Site(vtn, monkeypatch, response="10s")
    event = vtn.event(vtn.program(), **cap(40.0, soon(), 60))
    fast.poll()
    vtn.faults.skew_s = 4.0
    for one in (slow, fast):
        one.poll()
        assert "ahead of ours" in one.alarms
        assert one.limits_kw == [40.0]
    vtn.faults.skew_s = -9.0
    vtn.change(event, **cap(60.0, soon(), 60))
    slow.poll()
    fast.poll()
    assert slow.limits_kw == [60.0]
    assert fast.limits_kw == [40.0], "nothing new is taken, and nothing is lifted"
    assert "behind ours, too far for a response within 10s" in str(fast.ven.state().problem)


def test_a_secret_goes_over_https_only_but_to_this_machine() -> None:
    source = {"name": "u", "protocol": "openadr-3.1", "region": "north", "url": "http://vtn.example"}
    with pytest.raises(Exception, match="must begin with https"):
        VtnClient(EventSourceConfig(**source), now=Ahead().now)
    VtnClient(EventSourceConfig(**source, verify_tls=False), now=Ahead().now).close()


def test_a_certificate_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = self_signed(tmp_path)
    with Vtn("3.1", tls=tls) as vtn:
        vtn.event(vtn.program(), **cap(40.0, soon(), 60))
        stranger, known = Site(vtn, monkeypatch), Site(vtn, monkeypatch, ca_file=tls[0])
        stranger.poll()
        assert "certificate or TLS is not accepted" in str(stranger.ven.state().problem)
        assert vtn.asked == []
        known.poll()
        assert (known.ven.state().problem, known.limits_kw) == (None, [40.0])
        for one in (stranger, known):
            one.client.close()


def self_signed(folder: Path) -> tuple[str, str]:
    """The files of a certificate for 127.0.0.1 that nobody signed but itself, and of its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "vtn")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(pem)
    return str(folder / "cert.pem"), str(folder / "key.pem")


@pytest.mark.parametrize("head", [True, False], ids=["head", "body"])
def test_an_answer_that_drips_is_cut(monkeypatch: pytest.MonkeyPatch, head: bool) -> None:
    """A byte now and then keeps each wait of a socket short; the whole is bounded all the same."""
    monkeypatch.setattr("dispatcher.dr.vtn_client.HEAD_S", 0.6)
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\n" if head else b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
                while not stop.wait(0.1):
                    try:
                        connection.sendall(b"x: y\r\n"[:1] if head else b" ")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        source = {
            "name": "u",
            "protocol": "openadr-3.1",
            "region": "north",
            "url": f"http://127.0.0.1:{server.getsockname()[1]}",
        }
        client = VtnClient(EventSourceConfig(**source), now=Ahead().now, limits=Limits(0.5, 0.5, 0.6))
        try:
            with pytest.raises(VtnError):
                client.all("/programs")
        finally:
            stop.set()
            thread.join()
            client.close()


# --- doctor ---------------------------------------------------------------------------------------------------------


def found(site: Site) -> list[tuple[str, str]]:
    return [(one.level, one.says) for one in check_event_source(site.config.event_sources[0], site.clock.now)]


def test_doctor_looks_at_a_vtn(vtn: Vtn, monkeypatch: pytest.MonkeyPatch) -> None:
    vtn.program()
    site = Site(vtn, monkeypatch)
    assert found(site) == [("ok", f"{vtn.url} answers: 1 program")]
    vtn.faults.skew_s = 30.0
    assert [level for level, _ in found(site)] == ["ok", "fail"]
    vtn.secret = "another"
    assert "HTTP 401" in found(site)[0][1]
    vtn.secret, vtn.faults.skew_s = "s3cret", 0.0
    assert found(Site(vtn, monkeypatch, programs=["nowhere"])) == [("fail", "it has no program nowhere for us")]
    vtn.stop()
    assert "no connection could be made" in found(site)[0][1]
    vtn.__enter__()
