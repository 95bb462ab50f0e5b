"""Messages from events to their receivers: a real HTTP server, a real mail server, and the daemon's store."""

import contextlib
import errno
import json
import re
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from aiosmtpd.controller import Controller
from click.testing import CliRunner
from structlog.testing import capture_logs

import metasched
from metasched.cli import main
from metasched.core.batching import Contradiction
from metasched.core.declared_work import WorkContradiction
from metasched.core.event_kinds import KINDS
from metasched.notify.channels import check_channels
from metasched.notify.positions import PositionsError, PositionsFile
from metasched.notify.rules import Destination, RulesError, load_rules
from metasched.notify.service import NotifyService
from metasched.notify.webhook import DeliveryError, post
from metasched.store import JobRecord, Store
from tests.ports import free_port

LOCAL = ("127.0.0.0/8",)
GENEROUS = 60.0


class Receiver:
    """A web server that notes what it gets, and answers as it is told."""

    def __init__(self):
        self.bodies, self.headers, self.answers, self.release = [], [], [], threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                outer.headers.append(dict(self.headers))
                outer.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                answer = outer.answers.pop(0) if outer.answers else 204
                if answer == "hang":
                    outer.release.wait(GENEROUS)
                    return
                status, headers = answer if isinstance(answer, tuple) else (answer, {})
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.release.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "state" / "metasched.db") as opened:
        opened.begin_term(1)
        for number, user in ((1, "ada"), (2, "bob")):
            opened.add_job(
                JobRecord(f"{number:016x}", str(10 + number), f"train{number}", user, 1.0, account=f"lab{number}")
            )
        yield opened


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def service(tmp_path, store, clock):
    """A function that makes a service as the process's start does, and ends the one before."""
    with contextlib.ExitStack() as stack:

        def make(*destinations, **options):
            stack.close()
            file = PositionsFile(tmp_path / "notify")
            stack.callback(file.close)
            return NotifyService(store.path, destinations, file, clock=clock, **options)

        yield make


def to(receiver, name="hook", **fields):
    defaults = {"name": name, "webhook": receiver.url, "allow_networks": LOCAL, "digest_seconds": 0}
    return Destination.model_validate(defaults | fields)


def steps(service, count=2):
    for _ in range(count):
        service.step()
        service.wait_for_deliveries(GENEROUS)


def preempt(store, clock, times):
    for number in range(times):
        store.event("preempted", f"stopped for {number} jobs", f"{1:016x}", at=clock.now)


def test_events_before_the_first_start_are_not_told_and_later_ones_are(store, clock, service, receiver):
    preempt(store, clock, 3)
    told = service(to(receiver))
    steps(told)
    assert receiver.bodies == []
    store.event("finished", "ended as FAILED", f"{2:016x}", at=clock.now)
    steps(told)
    (body,) = receiver.bodies
    assert (body["count"], body["subject"]) == (1, "metasched: finished: job 12 (train2)")
    event = body["events"][0]
    assert (event["kind"], event["job"], event["user"], event["text"]) == ("finished", "12", "bob", "ended as FAILED")


def test_thirty_preemptions_are_one_message(store, clock, service, receiver):
    """Events of the digest's time are one message, whose subject counts them."""
    told = service(to(receiver, digest_seconds=60))
    steps(told)
    preempt(store, clock, 15)
    steps(told)
    clock.now += 30
    preempt(store, clock, 15)
    steps(told)
    assert receiver.bodies == []
    clock.now += 31
    steps(told)
    (body,) = receiver.bodies
    assert (body["count"], body["subject"], len(body["events"])) == (30, "metasched: 30 preempted", 30)


def test_a_restart_tells_nothing_twice_and_loses_nothing(store, clock, service, receiver):
    told = service(to(receiver))
    steps(told)
    preempt(store, clock, 1)
    steps(told)
    store.event("finished", "ended as COMPLETED", f"{1:016x}", at=clock.now)
    again = service(to(receiver))
    steps(again)
    assert [body["events"][0]["kind"] for body in receiver.bodies] == ["preempted", "finished"]


def test_a_message_that_was_not_delivered_before_a_restart_is_delivered_after_it(store, clock, service, receiver):
    """It has the same id and content, so that a receiver can drop what comes twice."""
    receiver.answers = [500]
    told = service(to(receiver))
    steps(told, 1)
    preempt(store, clock, 1)
    steps(told)
    clock.now += 3600
    steps(service(to(receiver)))
    first, second = receiver.bodies
    assert first == second
    assert receiver.headers[0]["Idempotency-Key"] == receiver.headers[1]["Idempotency-Key"] == first["id"]


def test_another_daemon_that_goes_on_from_a_copy_is_followed(tmp_path, store, clock, service, receiver):
    """Numbers of events mean others then: what was told is not told again, even where it is recorded again."""
    copy = tmp_path / "copy.db"
    preempt(store, clock, 2)
    store.copy_to(copy)
    told = service(to(receiver))
    steps(told, 1)
    clock.now += 5
    preempt(store, clock, 3)
    store.event("finished", "ended as FAILED", f"{1:016x}", at=clock.now)
    steps(told)
    assert [body["count"] for body in receiver.bodies] == [4]
    store.close()
    copy.replace(store.path)
    with Store.open(store.path) as other:
        other.begin_term(2)
        clock.now += 5
        other.event("finished", "ended as FAILED", f"{1:016x}", at=clock.now)  # the copy had not seen it
        other.event("lost", "its run ended", f"{2:016x}", at=clock.now)
        steps(service(to(receiver)))
    assert [event["kind"] for body in receiver.bodies[1:] for event in body["events"]] == ["lost"]


def test_kinds_users_and_states_choose(store, clock, service, receiver):
    chosen = to(receiver, kinds=["finished", "slurm_*"], users=["b*"], end_states=["FAILED"], cluster=True)
    told = service(chosen)
    steps(told)
    for number, state in ((1, "FAILED"), (2, "FAILED")):
        store.event("arrived", "new", f"{number:016x}", at=clock.now)
        store.finish_job(f"{number:016x}", clock.now, state, 1)
        store.event("finished", f"ended as {state}", f"{number:016x}", at=clock.now)
    store.event("slurm_unreachable", "no answer", at=clock.now)
    store.event("policy_failed", "las: ...", at=clock.now)
    steps(told)
    events = [event for body in receiver.bodies for event in body["events"]]
    assert [(event["kind"], event["user"]) for event in events] == [("finished", "bob"), ("slurm_unreachable", "")]


def test_a_receiver_that_hangs_or_fails_does_not_delay_others(store, clock, service, receiver):
    other = Receiver()
    receiver.answers = ["hang"]
    try:
        told = service(to(receiver, "hangs"), to(other, "works"))
        told.step()
        preempt(store, clock, 1)
        told.step()
        deadline = time.monotonic() + GENEROUS
        while not other.bodies and time.monotonic() < deadline:
            told.step()
            time.sleep(0.05)
        assert len(other.bodies) == 1
    finally:
        other.close()
        receiver.release.set()
        told.wait_for_deliveries(GENEROUS)


def test_failures_are_tried_again_ever_later_and_further_events_join(store, clock, service, receiver):
    receiver.answers = [503, 503]
    told = service(to(receiver))
    steps(told, 1)
    preempt(store, clock, 1)
    steps(told, 1)
    steps(told, 3)
    assert len(receiver.bodies) == 1  # not before some seconds
    preempt(store, clock, 5)
    clock.now += 5
    steps(told, 3)
    clock.now += 5
    steps(told, 3)
    assert len(receiver.bodies) == 2  # twice as long
    clock.now += 5
    steps(told, 3)
    assert [body["count"] for body in receiver.bodies] == [1, 1, 1, 5]


def test_a_message_is_given_up_after_its_time_with_an_error(store, clock, service, receiver):
    receiver.answers = [500, 500]
    told = service(to(receiver, give_up_seconds=100))
    steps(told, 1)
    preempt(store, clock, 1)
    steps(told, 1)
    clock.now += 101
    with capture_logs() as logs:
        steps(told, 3)
    clock.now += 10_000
    steps(told, 3)
    assert len(receiver.bodies) == 2
    assert [line["destination"] for line in logs if line["event"] == "message_dropped"] == ["hook"]


def test_a_redirect_is_not_followed(receiver):
    other = Receiver()
    try:
        receiver.answers = [(302, {"Location": other.url})]
        with pytest.raises(DeliveryError, match=r"302 with a redirect to .* not followed"):
            post(receiver.url, b"{}", {}, to(receiver).allow_networks)
        assert other.bodies == []
    finally:
        other.close()


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "10.1.2.3", "192.168.0.1", "169.254.169.254", "[::1]", "[fe80::1]", "[::ffff:10.0.0.1]",
     "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "0.0.0.0", "224.0.0.1"],  # noqa: S104  an address to refuse
)  # fmt: skip
def test_private_addresses_are_refused_unless_allowed(host):
    with pytest.raises(DeliveryError, match="no public address"):
        post(f"http://{host}:9/", b"", {})


def test_a_receiver_that_answers_a_byte_now_and_then_is_left():
    """The whole delivery has a limit, which single waits below their own limit do not extend."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def drip():
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            while not ended.wait(0.05):
                connection.sendall(b"H")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    try:
        networks = Destination(name="a", slack="http://a/", allow_networks=LOCAL).allow_networks
        with pytest.raises(DeliveryError):
            post(f"http://127.0.0.1:{listener.getsockname()[1]}/", b"", {}, networks, total_seconds=0.5)
    finally:
        ended.set()
        listener.close()
        thread.join(GENEROUS)


def test_names_of_64_kb_and_control_characters_are_bounded(store, clock, service, receiver):
    store.add_job(JobRecord("f" * 16, "99", "x" * 65536, "ada\x1b[2J", 1.0))
    told = service(to(receiver))
    steps(told)
    store.event("finished", "\x07" * 65536, "f" * 16, at=clock.now)
    steps(told)
    body = receiver.bodies[0]
    assert len(json.dumps(body)) < 16_000
    assert body["events"][0]["user"] == "ada\\x1b[2J"


def test_slack_gets_text_in_which_users_cannot_mention_or_link(store, clock, service, receiver):
    store.add_job(JobRecord("e" * 16, "98", "<!channel>", "ada", 1.0))
    told = service(Destination(name="s", slack=receiver.url, allow_networks=LOCAL, digest_seconds=0))
    steps(told)
    store.event("lost", "<https://evil|click>", "e" * 16, at=clock.now)
    steps(told)
    text = receiver.bodies[0]["text"]
    assert "&lt;!channel&gt;" in text
    assert "<" not in text


class Mails:
    """A mail server's handler that refuses one recipient."""

    def __init__(self):
        self.mails = []

    async def handle_RCPT(self, server, session, envelope, address, rcpt_options):  # noqa: N802  aiosmtpd's name
        if address.startswith("bob@") and not self.mails:
            return "450 later"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):  # noqa: N802
        self.mails.append((tuple(envelope.rcpt_tos), envelope.content.decode()))
        return "250 OK"


def test_each_user_gets_mail_about_own_jobs(store, clock, service):
    """A user whose address is refused for now gets the mail later, and delays no other's."""
    handler = Mails()
    port = free_port()
    controller = Controller(handler, hostname="127.0.0.1", port=port, ready_timeout=GENEROUS)
    controller.start()
    try:
        url = f"mailto://127.0.0.1:{port}?from=metasched@example.org&to={{user}}@example.org&mode=insecure"
        told = service(Destination(name="mail", apprise=url, per_user=True, digest_seconds=0))
        steps(told)
        store.event("finished", "ended as FAILED", f"{2:016x}", at=clock.now)
        store.event("finished", "ended as COMPLETED", f"{1:016x}", at=clock.now)
        steps(told, 3)
        clock.now += 10
        steps(told, 3)
        assert [recipients for recipients, _ in handler.mails] == [("ada@example.org",), ("bob@example.org",)]
        assert "job 12" in handler.mails[1][1]
        assert "job 11" not in handler.mails[1][1]
    finally:
        controller.stop()


def test_a_full_disk_holds_messages_back_until_there_is_room(store, clock, service, receiver, monkeypatch):
    """What is not in the file is not sent, because a restart would send it again."""
    told = service(to(receiver))
    steps(told)
    preempt(store, clock, 1)
    with monkeypatch.context() as patch:

        def full(*args, **kwargs):
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr("metasched.notify.positions.replace_file", full)
        with capture_logs() as logs:
            steps(told, 3)
        assert receiver.bodies == []
        assert len([line for line in logs if "No space left on device" in line.get("problem", "")]) == 1
    steps(told)
    assert len(receiver.bodies) == 1


def test_a_template_that_fails_on_events_is_named_and_replaced(store, clock, service, receiver):
    told = service(to(receiver, template="{{ 1 // (events[0].text | length - 4) }}"))
    steps(told)
    store.event("lost", "four", f"{1:016x}", at=clock.now)
    with capture_logs() as logs:
        steps(told)
    assert "job 11 (train1, ada): four" in receiver.bodies[0]["text"]
    assert [line["destination"] for line in logs if line["event"] == "template_failed"] == ["hook"]


def test_two_processes_do_not_share_a_directory(tmp_path):
    code = "import sys; from pathlib import Path; from metasched.notify.positions import PositionsFile; "
    code += "file = PositionsFile(Path(sys.argv[1])); print('has it', flush=True); sys.stdin.read()"
    arguments = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "has it\n"
        with pytest.raises(PositionsError, match="another `metasched notify`"):
            PositionsFile(tmp_path)
        other.stdin.close()
    PositionsFile(tmp_path).close()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"term": 1, "destinations": {}, "version": 9}'])
def test_a_damaged_file_of_positions_is_named(tmp_path, content):
    file = PositionsFile(tmp_path)
    file.path.write_bytes(content)
    with pytest.raises(PositionsError, match=r"positions\.json"):
        file.load()
    file.close()


HOOK = '[[notify]]\nname = "a"\nwebhook = "https://example.org/x"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "notify: missing"),
        ("x = ", "is not TOML"),
        ('[[notify]]\nname = "a"\n', "exactly one of webhook, slack and apprise"),
        (HOOK + 'kinds = ["finishd"]', "did you mean 'finished'"),
        (HOOK + 'template = "{% for %}"', "template: line 1: "),
        (HOOK + 'template = "{{ events[0].nmae }}"', "template: .*nmae"),
        (HOOK + 'subject = "{{ nothing }}"', "subject: 'nothing' is undefined"),
        (HOOK + 'template = "{{ events.__class__.__mro__[1].__subclasses__() }}"', "template: .*unsafe"),
        (HOOK + HOOK, "two destinations have one name"),
        (HOOK + "per_user = true", "per_user is for apprise"),
        (HOOK.replace("https", "file"), "must be http://"),
        (HOOK + 'allow_networks = ["10.0.0.1/8"]', "has host bits set"),
        (HOOK + 'headers = { A = "b\\r\\nHost: evil" }', "printable ASCII"),
        (HOOK + "digest_second = 3", r"no such key; did you mean 'digest_seconds'\?$"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path, text, said):
    path = tmp_path / "notify.toml"
    path.write_text(text)
    with pytest.raises(RulesError, match=said) as caught:
        load_rules(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        "digest_seconds = 'soon'",
        "slack = 'x'",
        'slack = "https://token\\u2100@h"',
        "slack = 'https://[token'",
        "per_user = true",
        "nothing = 1",
    ],
)
def test_a_wrong_file_tells_no_secret(tmp_path, wrong):
    """The message, which reaches the journal, has no values of the file's, such as addresses with tokens."""
    path = tmp_path / "notify.toml"
    path.write_text(HOOK.replace("org/x", "org/token") + wrong)
    with pytest.raises(RulesError) as caught:
        load_rules(path)
    assert "token" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2


def test_the_command_checks_the_file_and_sends_a_test(tmp_path, receiver):
    path = tmp_path / "notify.toml"
    path.write_text(
        f'[[notify]]\nname = "hook"\nwebhook = "{receiver.url}"\nkinds = ["lost"]\nallow_networks = ["127.0.0.0/8"]\n'
    )
    call = ["notify", "--rules", str(path)]
    done = CliRunner().invoke(main, [*call, "--check"], catch_exceptions=False)
    assert (done.exit_code, done.output) == (0, "hook: lost\n")
    done = CliRunner().invoke(main, [*call, "--test", "hook"], catch_exceptions=False)
    assert (done.exit_code, done.output) == (0, "hook has taken the message\n")
    assert receiver.bodies[0]["events"][0]["name"] == "test"
    done = CliRunner().invoke(main, [*call, "--test", "hoc"])
    assert done.exit_code == 2
    assert "there are: hook" in done.output


def test_an_apprise_url_of_no_known_kind_is_refused():
    with pytest.raises(DeliveryError, match="does not know"):
        check_channels((Destination(name="a", apprise="nonsense://x"),))


def test_every_recorded_kind_of_event_is_known():
    """What the daemon's modules record can be chosen by `kinds`, and nothing else is offered."""
    source = "\n".join(path.read_text() for path in Path(metasched.__file__).parent.rglob("*.py"))
    literal = r"""(?:\.event|event_once|renew_event|job_events)\(\s*"([\w-]+)\""""
    recorded = set(re.findall(literal, source))
    assert len(recorded) > 20
    assert recorded <= KINDS.keys()
    unknown = [kind for kind in KINDS if f'"{kind}"' not in source.replace(f'"{kind}": "', "")]
    of_enums = {f"batch-{found.value}" for found in Contradiction} | {
        f"steps-{found.value}" for found in WorkContradiction
    }
    assert set(unknown) == of_enums
