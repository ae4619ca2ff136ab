"""The status page: one HTML document made from the status document. Pure.

Whatever was not written in this folder is escaped on its way into the page. No style or script runs
but those of the page, which its Content-Security-Policy names by their hashes. The page works
without scripts. Its size is bounded.

1. `page` takes the status document, and puts the sections together.
2. `health` says what is wrong, the worst first, and which command helps.
3. `activity` shows recoveries, moves, copies and events.
4. `servers` and `tables` show what there is, and which server has what.
5. `html` makes the small pieces that all of them use.

Read first: `page`. Also searched for as: web UI, dashboard, CSP, admin console.
"""
