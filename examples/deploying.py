"""Deploying: the same `app` on every WSGI server, and behind a proxy.

    $ python3 -m webapp examples/deploying.py
    $ curl http://127.0.0.1:8000/whoami
    {"remote_address": "127.0.0.1", "scheme": "http", "host": "127.0.0.1:8000", "url": ...

Other servers (each has to be installed) are told where `app` is, and start more processes when one
is not enough:

    $ gunicorn --workers 4 --threads 8 --bind 127.0.0.1:8000 examples.deploying:app
    $ waitress-serve --listen=127.0.0.1:8000 --threads=16 examples.deploying:app
    $ uwsgi --master --processes 4 --threads 8 --http-socket 127.0.0.1:8000 \\
        --module examples.deploying:app
    $ mod_wsgi-express start-server --port 8000 --processes 4 examples/deploying.py

or in the configuration of Apache, where mod_wsgi looks for the name `application`:

    WSGIDaemonProcess whoami processes=4 threads=8
    WSGIScriptAlias / /srv/whoami/examples/deploying.py \\
        process-group=whoami application-group=%{GLOBAL}
    WSGIPassAuthorization On

Behind nginx, which speaks HTTPS with the world, tell the application that there is a proxy to
believe (TRUSTED_PROXIES=1 below). Without it every client is 127.0.0.1, and nothing is https. nginx
must write all three X-Forwarded fields, because otherwise a client could write them:

    location / {
        proxy_pass http://127.0.0.1:8000;
        proxy_http_version 1.1;
        proxy_set_header Host $http_host;
        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        proxy_set_header X-Forwarded-Proto $scheme;
        proxy_set_header X-Forwarded-Host $http_host;
        proxy_buffering off;                                # for server-sent events
        client_max_body_size 16m;                           # as max_body_size of WebApp
    }

With TRUSTED_PROXIES, our own server may be called by every name: nginx knows which names it
serves. Without it, a request for the public name is a 421, until the server is told that name, as
behind a tunnel: `--trusted-host shop.example`, or `app.run(trusted_hosts=["shop.example"])`.
Middleware around `app` hides its `trusted_proxies` from the server: name the hosts there, too.

Or behind HAProxy:

    backend whoami
        option http-no-delay                                # or each event waits for 0.2 s
        option forwardfor
        http-request set-header X-Forwarded-Proto %[ssl_fc,iif(https,http)]
        http-request set-header X-Forwarded-Host %[req.hdr(Host)]
        server one 127.0.0.1:8000

    $ TRUSTED_PROXIES=1 gunicorn --bind 127.0.0.1:8000 examples.deploying:app
    $ TRUSTED_PROXIES=1 waitress-serve --listen=127.0.0.1:8000 \\
        --no-clear-untrusted-proxy-headers examples.deploying:app

Trust no more proxies than there are: a client's own X-Forwarded-For stands further left.

All processes need the same SECRET_KEY, or a session is lost when another process answers.
"""

# search words: gunicorn, nginx, Apache, production, X-Forwarded-For, load balancer, uWSGI, mod_wsgi

import os

from webapp import WebApp

app = WebApp(
    # python3 -c 'import secrets; print(secrets.token_hex())' makes a key.
    secret_key=os.environ.get("SECRET_KEY"),
    trusted_proxies=int(os.environ.get("TRUSTED_PROXIES", 0)),
)
application = app  # the name that mod_wsgi looks for


@app.get("/whoami")
def whoami(context):
    request = context.request
    return {
        "remote_address": request.remote_address,
        "scheme": request.scheme,
        "host": request.host,
        "url": request.url,
    }
