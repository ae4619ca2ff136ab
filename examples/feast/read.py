"""What a model asks for at a departure; then an observation of right now, which counts at once."""

from datetime import UTC, datetime

import pandas as pd
from feast import FeatureStore


def main() -> None:
    """Read, push, read."""
    store = FeatureStore(".")
    service = store.get_feature_service("departure")
    departures = [{"carrier": "UA", "origin": "EWR"}, {"carrier": "B6", "origin": "JFK"}]
    print(store.get_online_features(service, departures).to_df().T)

    now = {"origin": "JFK", "temp": 41.0, "wind_speed": 22.0, "visib": 3.5}
    store.push("observations", pd.DataFrame([now | {"event_timestamp": datetime.now(UTC)}]))
    found = store.get_online_features(["airport_weather:visib"], departures[1:]).to_dict()
    print(f"visibility at JFK: {found['visib'][0]} miles")


if __name__ == "__main__":
    main()
