"""The proxy set-ups of contrib/web, run by real nginx and Apache where they are installed."""

import base64
import grp
import os
import pwd
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.error import HTTPError, URLError

import pytest

from metasched.shared_dir import published_status
from tests.browser.site import make_site
from tests.ports import free_port

CONTRIB = Path(__file__).parents[2] / "contrib" / "web"
PASSWORD = "{SHA}" + base64.b64encode(bytes.fromhex("a94a8fe5ccb19ba61c4c0873d391e987982fbbd3")).decode()  # of "test"
NGINX = """
daemon off; pid {here}/nginx.pid; error_log {here}/error.log;{user}
events {{}}
http {{
  access_log off; client_body_temp_path {here}/b; proxy_temp_path {here}/p;
  fastcgi_temp_path {here}/f; uwsgi_temp_path {here}/u; scgi_temp_path {here}/s;
  server {{ listen 127.0.0.1:{port}; include {here}/site.conf; }}
}}
"""
APACHE = """
ServerRoot {here}
PidFile {here}/apache.pid
ErrorLog {here}/error.log
Listen 127.0.0.1:{port}
ServerName localhost{user}
{modules}
Include {here}/site.conf
"""
MODULES = [
    "mpm_event",
    "authn_core",
    "authn_file",
    "authz_core",
    "authz_user",
    "auth_basic",
    "headers",
    "proxy",
    "proxy_http",
]


def prepare(directory, kind):
    """Write the proxy's files; returns the command that runs it, and its port."""
    port, name = free_port(), {"nginx": "nginx.conf", "apache2": "apache.conf"}[kind]
    text = (CONTRIB / name).read_text().replace("/run/metasched-web/web.sock", str(directory / "web.sock"))
    (directory / "site.conf").write_text(text.replace("/etc/metasched/htpasswd", str(directory / "htpasswd")))
    (directory / "htpasswd").write_text(f"ann:{PASSWORD}\n")
    me = pwd.getpwuid(os.getuid()).pw_name
    if kind == "nginx":
        user = f" user {me};" if os.getuid() == 0 else ""
        (directory / "main.conf").write_text(NGINX.format(here=directory, port=port, user=user))
        return ["nginx", "-e", str(directory / "error.log"), "-c", str(directory / "main.conf")], port
    folder = Path("/usr/lib/apache2/modules")
    modules = "\n".join(f"LoadModule {name}_module {folder}/mod_{name}.so" for name in MODULES)
    group = grp.getgrgid(pwd.getpwnam("www-data").pw_gid).gr_name
    user = f"\nUser www-data\nGroup {group}" if os.getuid() == 0 else ""
    (directory / "main.conf").write_text(APACHE.format(here=directory, port=port, modules=modules, user=user))
    return ["apache2", "-X", "-f", str(directory / "main.conf")], port


def ask(port, path="/metasched/api/v1/queue", user="ann", **headers):
    """The status and text of an answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    if user:
        request.add_header("Authorization", "Basic " + base64.b64encode(f"{user}:test".encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310  likewise
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture(params=["nginx", "apache2"])
def port(request, tmp_path):
    """The port of a proxy in front of a running page."""
    path = os.environ["PATH"] + ":/usr/sbin"
    if shutil.which(request.param, path=path) is None:
        pytest.skip(f"{request.param} is not installed")
    for parent in (tmp_path, *tmp_path.parents[:3]):  # the proxy may run as another user
        if parent.owner() == pwd.getpwuid(os.getuid()).pw_name and parent != Path("/tmp"):  # noqa: S108  never changed
            parent.chmod(0o755)
    (tmp_path / "shared").mkdir()
    published_status.publish(tmp_path / "shared", make_site())
    (tmp_path / "metasched.toml").write_text(
        f'[paths]\nstate = "{tmp_path}/state"\nshared = "{tmp_path}/shared"\n'
        f'[web]\nsocket = "{tmp_path}/web.sock"\nsocket_mode = "0666"\nroot_path = "/metasched"\n'
    )
    command, number = prepare(tmp_path, request.param)
    page = [sys.executable, "-m", "metasched", "--config", str(tmp_path / "metasched.toml"), "web"]
    processes = [subprocess.Popen(page), subprocess.Popen(command, env=os.environ | {"PATH": path})]
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                if ask(number)[0] == 200:
                    break
            except URLError:
                pass
            time.sleep(0.1)
        yield number
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(60)


def test_the_proxy_names_the_user_and_no_client_does(port):
    """Without a password nobody sees anything; a forged header is replaced; links stay below the proxy's path."""
    assert ask(port, user=None)[0] == 401
    status, page = ask(port, "/metasched/queue", **{"X-Remote-User": "root", "x_remote_user": "root"})
    assert status == 200
    assert "<bdi>ann</bdi>" in page
    assert 'href="/metasched/' in page
    style = page.split('stylesheet" href="')[1].split('"')[0]
    assert ask(port, style)[0] == 200
