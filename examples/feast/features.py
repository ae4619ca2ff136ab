"""What Feast is to know: two entities, a feature view of each, and the service of a model."""

from datetime import timedelta

from feast import Entity, FeatureService, FeatureView, Field, FileSource, PushSource, ValueType
from feast.types import Float64, Int64, String

carrier = Entity(name="carrier", join_keys=["carrier"], value_type=ValueType.STRING)
airport = Entity(name="airport", join_keys=["origin"], value_type=ValueType.STRING)

carrier_delays = FeatureView(
    name="carrier_delays",
    entities=[carrier],
    ttl=timedelta(days=400),
    schema=[
        Field(name="carrier", dtype=String),
        Field(name="flights", dtype=Int64),
        Field(name="mean_delay", dtype=Float64),
        Field(name="late", dtype=Float64),
    ],
    source=FileSource(path="data/carrier_delays.parquet", timestamp_field="event_timestamp"),
)

airport_weather = FeatureView(
    name="airport_weather",
    entities=[airport],
    ttl=timedelta(days=400),
    schema=[
        Field(name="origin", dtype=String),
        Field(name="temp", dtype=Float64),
        Field(name="wind_speed", dtype=Float64),
        Field(name="visib", dtype=Float64),
    ],
    # Observations of right now are pushed; older ones are in the file.
    source=PushSource(
        name="observations",
        batch_source=FileSource(
            path="data/airport_weather.parquet", timestamp_field="event_timestamp"
        ),
    ),
)

departure = FeatureService(name="departure", features=[carrier_delays, airport_weather])
