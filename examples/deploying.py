"""Deploying: the same `app` on every WSGI server, and behind a proxy.

    $ python3 -m webapp examples/deploying.py
    $ curl http://127.0.0.1:8000/whoami
    {"remote_address": "127.0.0.1", "scheme": "http", "host": "127.0.0.1:8000", "url": ...

To use another server, install it and tell it where `app` is. It can start several processes if one
is not enough:

    $ gunicorn --workers 4 --threads 8 --bind 127.0.0.1:8000 examples.deploying:app
    $ waitress-serve --listen=127.0.0.1:8000 --threads=16 examples.deploying:app
    $ uwsgi --master --processes 4 --threads 8 --http-socket 127.0.0.1:8000 \\
        --module examples.deploying:app
    $ mod_wsgi-express start-server --port 8000 --processes 4 examples/deploying.py

In the configuration of Apache, mod_wsgi looks for the name `application`:

    WSGIDaemonProcess whoami processes=4 threads=8
    WSGIScriptAlias / /srv/whoami/examples/deploying.py \\
        process-group=whoami application-group=%{GLOBAL}
    WSGIPassAuthorization On

If nginx speaks HTTPS with the world and passes requests on to the application, tell the application
that there is one proxy which it can trust (TRUSTED_PROXIES=1 below). Otherwise every client seems
to be 127.0.0.1, and no request seems to be https. nginx must set all three X-Forwarded fields,
because otherwise clients can forge them:

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

With TRUSTED_PROXIES, our own server accepts every host name, because nginx knows which names it
serves. Without it, for example behind a tunnel, a request for the public name is answered with 421
until you tell the server that name: `--trusted-host shop.example`, or
`app.run(trusted_hosts=["shop.example"])`. If you wrap `app` in middleware, the server does not see
`trusted_proxies`, so list the host names in this case, too.

For HAProxy, the configuration is:

    backend whoami
        option http-no-delay                                # or each event waits for 0.2 s
        option forwardfor
        http-request set-header X-Forwarded-Proto %[ssl_fc,iif(https,http)]
        http-request set-header X-Forwarded-Host %[req.hdr(Host)]
        server one 127.0.0.1:8000

    $ TRUSTED_PROXIES=1 gunicorn --bind 127.0.0.1:8000 examples.deploying:app
    $ TRUSTED_PROXIES=1 waitress-serve --listen=127.0.0.1:8000 \\
        --no-clear-untrusted-proxy-headers examples.deploying:app

Do not trust more proxies than there are. Each proxy appends an address to X-Forwarded-For, and what
is further left may come from the client itself.

All processes need the same SECRET_KEY. Otherwise a session is lost when the next request reaches
another process.
"""

# search words: gunicorn, nginx, Apache, production, X-Forwarded-For, load balancer, uWSGI, mod_wsgi

import os

from webapp import WebApp

app = WebApp(
    # To make a key: python3 -c 'import secrets; print(secrets.token_hex())'
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
