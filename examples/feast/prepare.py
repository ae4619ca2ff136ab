"""The offline data of this example, from the flights out of New York in 2013: data/*.parquet.

Of each carrier how its flights were late, day by day; of each airport the weather, hour by hour.
An event's time is when it is known: at the end of that day, of that hour.
"""

from pathlib import Path

import pandas as pd

from stelae.demo.data import flights_tables


def main() -> None:
    """Write both files."""
    Path("data").mkdir(exist_ok=True)
    tables = {table.name: table.rows.to_pandas() for table in flights_tables(None, buckets=1)}
    delays(tables["flights"]).to_parquet("data/carrier_delays.parquet")
    weather(tables["weather"]).to_parquet("data/airport_weather.parquet")


def delays(flights: pd.DataFrame) -> pd.DataFrame:
    """One row for each carrier and day."""
    flights = flights.dropna(subset=["dep_delay"])
    day = pd.to_datetime(flights[["year", "month", "day"]]).rename("day").dt.tz_localize("UTC")
    grouped = flights.groupby([flights.carrier, day]).dep_delay
    found = grouped.agg(flights="count", mean_delay="mean", late=lambda delay: (delay > 15).mean())
    found = found.reset_index()
    found["event_timestamp"] = found.pop("day") + pd.Timedelta(days=1)
    return found


def weather(hours: pd.DataFrame) -> pd.DataFrame:
    """One row for each airport and hour."""
    found = hours[["origin", "time_hour", "temp", "wind_speed", "visib"]].copy()
    hour = pd.to_datetime(found.pop("time_hour"), utc=True)
    found["event_timestamp"] = hour + pd.Timedelta(hours=1)
    return found.dropna()


if __name__ == "__main__":
    main()
