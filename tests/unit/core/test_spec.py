"""cluster.yaml: what is taken, what is refused, and how the refusal reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.config.peer_tls import OFF, PeerTls, peer_tls_of
from stelae.core.config.settings import Settings
from stelae.core.config.spec import ClusterSpec, MastersSpec, spec_json_schema
from stelae.core.config.spec_file import load_spec, parse_spec
from stelae.core.config.units import format_size, parse_duration, parse_size
from stelae.core.errors import InvalidArgument
from stelae.serve.gateway.guard import Limits

FILES = PeerTls("files", "/c.pem", "/k.pem", "/a.pem")
HEADER = "apiVersion: stelae/v1\nkind: Cluster\n"
REPOSITORY = Path(__file__).parents[3]


def refusal(text: str) -> str:
    """What `parse_spec` answers to a body that comes after the two header lines."""
    with pytest.raises(InvalidArgument) as caught:
        parse_spec(HEADER + text)
    return str(caught.value)


def test_cluster_yaml_of_the_repository_is_the_default_cluster() -> None:
    """The file spells out what an empty spec means, so that neither can drift from the other."""
    spec = load_spec(REPOSITORY / "cluster.yaml")
    assert spec == ClusterSpec().model_copy(update={"data_dir": str(REPOSITORY / ".stelae/demo")})
    assert spec.settings() == Settings()


def test_sizes_and_durations_become_bytes_and_seconds() -> None:
    """Values are taken as people write them, and attributes carry the unit."""
    spec = parse_spec(
        HEADER + "tservers: {memory: 1.5 GiB, quarantine_keep: 2d}\nsegment_size: 4MiB\n"
        "timings: {heartbeat: 250ms, lease: 2s, dead_after: 0.1m, call_timeout: 3}\n"
    )
    assert spec.tservers.memory_bytes == 1536 << 20
    assert spec.settings() == Settings(
        heartbeat_s=0.25,
        lease_s=2.0,
        dead_after_s=6.0,
        call_timeout_s=3.0,
        segment_bytes=4 << 20,
        quarantine_keep_s=172_800.0,
    )


def test_recovery_says_whether_rows_follow_and_how_fast() -> None:
    """Both reach the servers' settings."""
    spec = parse_spec(HEADER + "recovery: {metadata_first: false, load_rate: 64MiB}\n")
    assert spec.settings() == Settings(metadata_first=False, load_bytes_per_s=float(64 << 20))
    assert "load_rate" in refusal("recovery: {load_rate: 3}\n")


def test_recovery_says_from_which_size_on_tablets_are_split() -> None:
    """By a size, or off; YAML reads that as a boolean."""
    assert parse_spec(HEADER).settings().split_above_bytes == Settings().split_above_bytes > 0
    some = parse_spec(HEADER + "recovery: {split_above: 2GiB, split_above_rows: 1000}\n")
    assert some.settings() == Settings(split_above_bytes=2 << 30, split_above_rows=1000)
    for off in ("off", "'off'", "0", "false"):
        spec = parse_spec(HEADER + f"recovery: {{split_above: {off}}}\n")
        assert spec.settings() == Settings(split_above_bytes=0)
        assert load_spec(spec.document()).settings() == spec.settings()
    assert "split_above" in refusal("recovery: {split_above: 3}\n")


def test_each_error_names_its_line_and_field_and_all_come_at_once() -> None:
    """One look at the message is enough to mend the whole file."""
    text = refusal(
        "tserver: {count: 3}\n"
        "masters: {count: 4}\n"
        "media:\n"
        "  disk: {path: d, sync: allways, colour: red}\n"
        "  ram: {}\n"
        "backups:\n"
        "  count: three\n"
    )
    assert text.splitlines() == [
        "cluster.yaml has 6 errors:",
        "  line 3, tserver: is not a field of a cluster spec; did you mean 'tservers'?",
        "  line 4, masters.count: must be odd (1, 3, 5 or 7), got 4",
        "  line 6, media.disk.colour: is not a field of a cluster spec; "
        "known here are path, size, sync",
        "  line 6, media.disk.sync: must be 'always' or 'on_seal', got 'allways'",
        "  line 7, media.ram: needs a path (a folder) or a size (memory)",
        "  line 9, backups.count: must be a whole number, got 'three'",
    ]


def test_a_single_error_is_one_line() -> None:
    """A lone problem needs no list."""
    expected = "cluster.yaml, line 3, serve.port: must be at most 65535, got 70000"
    assert refusal("serve: {port: 70000}\n") == expected


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("tservers: {count: true}", "tservers.count: must be a whole number, got True"),
        ("tservers: {count: '3'}", "tservers.count: must be a whole number, got '3'"),
        ("tservers: {count: 0}", "tservers.count: must be at least 1, got 0"),
        ("tservers: {memory: 1GBs}", "tservers.memory: must be a size such as"),
        ("tservers: {memory: 8MiB}", "tservers.memory: must hold 8 segments (64MiB or more)"),
        ("tservers: {memory_bytes: 1}", "tservers.memory_bytes: is not a field"),
        ("segment_size: 1GiB", "segment_size: must be at most 256MiB, got 1073741824"),
        ("cluster: My Cluster", "cluster: must consist of lower-case letters"),
        ("media: {Disk: {path: x}}", "media.Disk: the name must consist of lower-case letters"),
        ("media: {a: {path: x}, b: {path: x/}}", "media.b.path: is the folder of the medium 'a'"),
        ("media: {a: {size: 1MiB}}", "media.a.size: must hold 4 segments (32MiB or more)"),
        ("media: {a: {size: 1GiB, sync: always}}", "media.a.sync: is for media with a path"),
        ("ray: {address: nowhere}", "ray.address: must be local, auto, host:port"),
        ("ray: {address: auto, num_cpus: 4}", "ray.num_cpus: is for a Ray that Stelae starts"),
        ("recovery: {engine: spark}\nspark: null", "recovery.engine: is spark, and there is no"),
        ("timings: {heartbeat: 1s, lease: 2s}", "timings.lease: must be at least three heartbeats"),
        ("timings: {dead_after: 1s}", "timings.dead_after: must not be below the lease (1.5s)"),
        ("serve: 8000", "serve: must be a section ({name: value}), got 8000"),
        ("masters:", "masters: must be a section ({name: value}), got None"),
        ("traces: {}", "traces.endpoint: Field required"),
        ("traces: {endpoint: 3}", "traces.endpoint: must be text"),
        ("traces: {endpoint: 'collector:4318'}", "traces.endpoint: must be the URL of a collector"),
        ("traces: {endpoint: 'http://'}", "traces.endpoint: must be the URL of a collector"),
        ("traces: {endpoint: 'http://h:x'}", "traces.endpoint: must be the URL of a collector"),
        ("traces: {endpoint: 'grpc://h:4317'}", "traces.endpoint: must be the URL of a collector"),
        ("traces: {endpoint: 'http://h/?a=b'}", "traces.endpoint: must have no user, password, ?"),
        ("tls: {mode: on}", "tls.mode: must be 'off', 'internal' or 'files', got True"),
        ("tls: internal", "tls: must be a section ({name: value}), got 'internal'"),
        ("tls: {mode: files, key: /k}", "tls.certificate: is missing: tls.mode files needs"),
        ("tls: {mode: files, key: /k}", "tls.authority: is missing: tls.mode files needs"),
        (
            "tls: {mode: files, certificate: c.pem, key: /k, authority: /a}",
            "tls.certificate: must be an absolute path, the same on every machine, got 'c.pem'",
        ),
        ("tls: {mode: internal, key: /k}", "tls.key: is for tls.mode files; the mode is internal"),
        ("cas_store: {url: x}", "cas_store.url: must be sqlite:///FILE or postgresql://USER@HOST"),
        ("cas_store: {url: 3}", "cas_store.url: must be text, got 3"),
        ("cas_store: {}", "cas_store.url: Field required"),
        ("cas_store: masters", "cas_store: must be a section ({name: value}), got 'masters'"),
        ("cas_store: {url: 'sqlite:///'}", "cas_store.url: must name a file inside the server's"),
        ("cas_store: {url: 'sqlite:////srv/x'}", "cas_store.url: must name a file inside the"),
        ("cas_store: {url: 'sqlite:///../x'}", "cas_store.url: must name a file inside the"),
        (
            "cas_store: {url: 'postgresql://h/d?passfile=x'}",
            "cas_store.url: must have an absolute path as passfile",
        ),
        (
            "safekeepers: {evict_after: 1h, evict_copies: 4}",
            "safekeepers.evict_copies: must not be above the number of backups (3)",
        ),
        (
            "backups: {copysets: 4}",
            "backups.copysets: must not be above the number of backups (3)",
        ),
        ("backups: {rereplication: fast}", "backups.rereplication: must be a size such as"),
        ("masters: {count: 3}\nmasters: {count: 5}", "masters: is given twice, on lines 3 and 4"),
        ("backups: &b {count: 3}\nmasters: *b", "masters: is an alias"),
        ("? [a, b]\n: 3", "whose name is no text"),
    ],
)
def test_what_is_wrong_is_said_in_words(body: str, said: str) -> None:
    """Wrong types, limits and contradictions between fields are each refused by name."""
    assert said in refusal(body + "\n")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:geheim@host/d",
        "postgres://me@host/d?password=geheim",
        "postgresql://host/d?sslpassword=geheim",
        "postgresql://me:ge#heim@host/d",
        "postgresql://me:geheim@[host/d",
        "mysql://me:geheim@host/d",
    ],
)
def test_a_password_in_the_url_of_the_configuration_store_is_refused_and_not_shown(
    url: str,
) -> None:
    """The URL goes into plans and logs; a password belongs into a file that only we read."""
    said = refusal(f"cas_store: {{url: {json.dumps(url)}}}\n")
    assert "line 3, cas_store.url: must" in said
    assert "heim" not in said


def test_a_configuration_store_is_one_more_server() -> None:
    """Whoever waits for all servers waits for it; of a database only the kind is for ever."""
    spec = parse_spec(HEADER + "cas_store: {url: 'postgres://me@h/d?passfile=/etc/pass'}\n")
    assert spec.cas_store is not None
    assert spec.cas_store.origin == "postgresql"
    assert spec.others_count == ClusterSpec().others_count + 1
    files = parse_spec(HEADER + "cas_store: {url: 'sqlite:///db/cas.db'}\n")
    assert files.cas_store is not None
    assert files.cas_store.origin == "sqlite:///db/cas.db"
    assert load_spec(json.loads(json.dumps(files.document()))) == load_spec(files)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cluster.yaml: is empty"),
        ("- a\n", "cluster.yaml, line 1: must be fields"),
        ("kind: Cluster\nmasters: [\n", "cluster.yaml, line 3: is not YAML"),
        ("a: 1\n---\nb: 2\n", "cluster.yaml, line 2: is not YAML"),
        ("\x07: 1", "cluster.yaml: is not YAML"),
        pytest.param("[" * 5000, "cluster.yaml: is not YAML", id="nested"),
        ("masters: {count: 3}\n", "apiVersion is missing; write apiVersion: stelae/v1"),
        ("apiVersion: stelae/v2\nkind: Cluster\n", "apiVersion: must be 'stelae/v1'"),
    ],
)
def test_text_that_is_no_cluster_spec_is_refused(text: str, said: str) -> None:
    """Broken YAML and foreign documents give an `InvalidArgument`, never another exception."""
    with pytest.raises(InvalidArgument) as caught:
        parse_spec(text)
    assert said in str(caught.value)


def test_the_input_of_ray_up_is_recognised() -> None:
    """Ray's launcher file has the same usual name; whoever mixes them up is told which is which."""
    with pytest.raises(InvalidArgument) as caught:
        parse_spec("cluster_name: x\nprovider: {type: aws}\navailable_node_types: {}\n")
    assert "line 2: this is the input of `ray up`" in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Absent files, folders, and files that are no text are the caller's to mend."""
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"kind: Cluster\n\xff\xfe")
    for path, said in [
        (tmp_path / "absent.yaml", "absent.yaml: cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
        (binary, "binary.yaml, line 2: is not UTF-8 text"),
    ]:
        with pytest.raises(InvalidArgument) as caught:
            load_spec(path)
        assert said in str(caught.value)


def test_overrides_are_merged_into_sections_and_blamed_on_the_call(tmp_path: Path) -> None:
    """An override changes one field, and its mistakes carry no line of the file."""
    path = tmp_path / "c.yaml"
    path.write_text(HEADER + "tservers: {count: 3, memory: 2GiB}\nserve: {port: 1}\n")
    spec = load_spec(path, tservers={"count": 5}, serve=None, masters=MastersSpec(count=1))
    assert (spec.tservers.count, spec.tservers.memory_bytes) == (5, 2 << 30)
    assert (spec.serve, spec.masters.count) == (None, 1)
    with pytest.raises(InvalidArgument) as caught:
        load_spec(path, tservers={"count": -1})
    assert str(caught.value) == f"{path}, tservers.count: must be at least 1, got -1"


def test_data_dir_is_absolute_and_lies_beside_the_file(tmp_path: Path) -> None:
    """Where the data is does not depend on the folder that a command is run from."""
    path = tmp_path / "c.yaml"
    path.write_text(HEADER + "cluster: shop\n")
    assert load_spec(path).data_dir == str(tmp_path / ".stelae/shop")
    assert load_spec({"cluster": "shop"}).data_dir == str(Path.cwd() / ".stelae/shop")
    assert load_spec({"data_dir": "/srv/x"}).data_dir == "/srv/x"


@pytest.mark.parametrize("source", [None, {}, ClusterSpec()])
def test_nothing_said_means_the_default_cluster(source: Any) -> None:
    """A dict needs no header, and no source at all is the default."""
    assert load_spec(source, data_dir="/d") == load_spec(ClusterSpec(), data_dir="/d")


def test_traces_name_a_collector_and_a_password_is_never_shown() -> None:
    """A folder before ``/v1/traces`` is taken; without the section there is no endpoint."""
    assert parse_spec(HEADER).traces_endpoint == ""
    for url, endpoint in {
        "http://collector:4318": "http://collector:4318",
        "https://otel.example/in/": "https://otel.example/in",
        "http://[::1]:4318": "http://[::1]:4318",
    }.items():
        spec = parse_spec(HEADER + f"traces: {{endpoint: '{url}'}}\n")
        assert spec.traces_endpoint == endpoint
        assert load_spec(json.loads(json.dumps(spec.document()))).traces == spec.traces
    for url in ("http://me:sesame@h:4318", "http://me:sesame@h:x", "ftp://me:sesame@h"):
        said = refusal(f"traces: {{endpoint: '{url}'}}\n")
        assert "traces.endpoint: must" in said
        assert "sesame" not in said


def test_tls_between_servers_is_off_unless_a_mode_is_named() -> None:
    """YAML reads a bare off as a boolean; plans carry what the section says."""
    assert ClusterSpec().tls.peer_tls == OFF
    for text in ("off", "'off'", "false"):
        spec = parse_spec(HEADER + f"tls: {{mode: {text}}}\n")
        assert spec.tls.peer_tls == OFF
        assert load_spec(json.loads(json.dumps(spec.document()))).tls == spec.tls
    assert parse_spec(HEADER + "tls: {mode: internal}\n").tls.peer_tls == PeerTls("internal")
    files = "tls: {mode: files, certificate: /c.pem, key: /k.pem, authority: /a.pem}\n"
    assert parse_spec(HEADER + files).tls.peer_tls == FILES


@pytest.mark.parametrize("tls", [OFF, PeerTls("internal"), FILES])
def test_a_cluster_remembers_its_tls(tls: PeerTls) -> None:
    """What ``cluster.json`` has of it is read back; an unknown mode is refused by name."""
    assert peer_tls_of(json.loads(json.dumps(tls.document()))) == tls
    assert bool(tls.document()) is tls.is_on
    with pytest.raises(InvalidArgument, match=r"'quantum'.*upgrade"):
        peer_tls_of({**tls.document(), "mode": "quantum"})


def test_a_spec_survives_its_own_document() -> None:
    """What `document` gives is read back as the same spec, also through JSON."""
    spec = load_spec({"tservers": {"memory": "3GiB"}, "spark": None, "media": {"m": {"path": "x"}}})
    assert load_spec(json.loads(json.dumps(spec.document()))) == spec


def test_the_json_schema_knows_the_fields_of_the_file() -> None:
    """Editors complete and check what `load_spec` takes."""
    schema = spec_json_schema()
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(ClusterSpec().document())
    assert "memory" in schema["$defs"]["TserversSpec"]["properties"]


@given(st.integers(min_value=0, max_value=1 << 50))
def test_every_size_is_read_back_exactly(size_bytes: int) -> None:
    """`format_size` is exact, and `parse_size` its inverse."""
    assert parse_size(format_size(size_bytes)) == parse_size(size_bytes) == size_bytes


@pytest.mark.parametrize(
    "value", ["", "GiB", "-1GiB", "1 XB", "1..5MiB", "0.3B", "1e3MiB", -1, 1.5, True, None, [1]]
)
def test_what_is_no_size_is_refused(value: Any) -> None:
    """Nothing is guessed from a malformed size."""
    with pytest.raises(ValueError, match="must be a size such as"):
        parse_size(value)


@pytest.mark.parametrize(
    "value", ["", "s", "-1s", "1 year", "1S", -1, True, None, float("nan"), float("inf"), {}]
)
def test_what_is_no_duration_is_refused(value: Any) -> None:
    """Nothing is guessed from a malformed duration."""
    with pytest.raises(ValueError, match="must be a duration such as"):
        parse_duration(value)


def test_limits_of_the_front_are_those_of_the_application_unless_they_are_set() -> None:
    """One default for both; what contradicts itself, or what servers would refuse, is refused."""
    spec = parse_spec(HEADER)
    assert spec.serve is not None
    assert Limits(**spec.serve.limits.model_dump()) == Limits()
    some = "serve: {limits: {body: 1MiB, bodies: 2MiB, requests: 8, rows: 10, timeout: 5s}}\n"
    spec = parse_spec(HEADER + some)
    assert spec.serve is not None
    wanted = Limits(1 << 20, 2 << 20, 8, 10, 5.0)
    assert Limits(**spec.serve.limits.model_dump()) == wanted
    assert "serve.limits.bodies" in refusal("serve: {limits: {body: 2MiB, bodies: 1MiB}}\n")
    assert "serve.limits.body" in refusal("serve: {limits: {body: 65MiB}}\n")
    assert "serve.limits.timeout_max" in refusal(
        "serve: {limits: {timeout: 1m, timeout_max: 5s}}\n"
    )


def test_the_small_profile_fills_in_what_is_left_out() -> None:
    """One process of each kind that `segments("disk", "disk")` needs, and nothing of Serve."""
    spec = load_spec({"profile": "small"})
    counts = (spec.masters.count, spec.tservers.count, spec.backups.count, spec.safekeepers.count)
    assert counts == (1, 1, 2, 0)
    assert spec.tservers.memory_bytes == 256 << 20
    assert spec.spark is None
    assert spec.serve is None
    assert load_spec({"profile": "small", "serve": {}}).serve == ClusterSpec().serve
    assert spec.recovery == ClusterSpec().recovery
    assert ClusterSpec().masters.count == 3


def test_what_is_given_goes_over_the_profile() -> None:
    """Also single fields of a section, as in a file, and by overrides."""
    body = "profile: small\ntservers: {count: 2}\nspark: {executors: 1}\nserve: {port: 1234}\n"
    spec = parse_spec(HEADER + body)
    assert (spec.tservers.count, spec.tservers.memory_bytes) == (2, 256 << 20)
    assert spec.spark is not None
    assert spec.serve is not None
    assert (spec.spark.executors, spec.serve.port) == (1, 1234)
    assert load_spec({"profile": "small"}, backups={"count": 3}).backups.count == 3
    assert load_spec({"backups": {"count": 3}}, profile="small").backups.count == 3


def test_a_profile_that_does_not_exist_is_refused_with_its_line() -> None:
    """As every other value."""
    assert "line 3, profile: must be 'default' or 'small', got 'tiny'" in refusal("profile: tiny\n")
    assert "profile" in refusal("profile: [small]\n")


def test_a_small_cluster_survives_its_own_document() -> None:
    """What servers keep of it is read back as it was."""
    spec = load_spec({"profile": "small", "tservers": {"count": 2}})
    assert load_spec(spec.document()) == spec
