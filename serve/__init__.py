"""The HTTP API: an application over a client's database, its status page, its place in Ray Serve.

Only `deployment` imports Ray. Every error is a problem document. Every path but ``/healthz`` wants
a token. A request goes through the client, never into a server's parts.

- `routes`: the paths of the API, by what they are about.
- `bodies`: the bodies of requests and answers, problems, and what OpenAPI says of them.
- `gateway`: what all requests pass: ids, tokens, bounds, audit, exactly-once, deadlines.
- `pages`: the status page.

`app` puts the application together. `deployment` runs it in Ray Serve; `environment` prepares what
must be there before Ray starts; `certificates` changes certificates while it serves.

Read first: `app`. Also searched for as: REST API, FastAPI, ASGI, gateway, OpenAPI.
"""
