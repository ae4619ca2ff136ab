"""What the leader master tried a moment ago, so that it is not tried again at once. Pure.

It is the only memory of `stelae.coordinator.decide`. It is lost with the leadership, which does no
harm: a new leader only tries again sooner. What is over is forgotten, so memory is bounded.

- `pacing`: pauses of orders and retries, by tablet.
- `owners`: owners that tablets and indexlets failed at, and when one that only waits is given up.
- `transfers`: leaderships that were to be handed over, and to whom that failed.
- `successions`: which changes of durability are stuck or refused, and what they wait for.

Read first: `pacing`. Also searched for as: retry, exponential backoff, throttle, cooldown.
"""
