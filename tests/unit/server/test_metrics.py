"""The Prometheus text format: names, labels, escapes."""

from kaas.server.metrics import Metric, exposition


def test_samples_with_and_without_labels() -> None:
    text = exposition(
        [
            Metric(name="kaas_a", help="How\nmany.", kind="gauge", samples={(): 3}),
            Metric(
                name="kaas_b_total",
                help="By code.",
                kind="counter",
                samples={(("code", 'a "\\\n'), ("by", "x")): 0.5, (("code", "c"), ("by", "y")): 2**53 + 1},
            ),
        ]
    )
    assert text == (
        "# HELP kaas_a How\\nmany.\n"
        "# TYPE kaas_a gauge\n"
        "kaas_a 3\n"
        "# HELP kaas_b_total By code.\n"
        "# TYPE kaas_b_total counter\n"
        'kaas_b_total{code="a \\"\\\\\\n",by="x"} 0.5\n'
        'kaas_b_total{code="c",by="y"} 9007199254740993\n'
    )


def test_truth_is_one_and_a_metric_without_samples_is_still_described() -> None:
    assert (
        exposition(
            [
                Metric(name="kaas_c", help="Yes.", kind="gauge", samples={(): True}),
                Metric(name="kaas_d", help="None yet.", kind="counter", samples={}),
            ]
        )
        == "# HELP kaas_c Yes.\n# TYPE kaas_c gauge\nkaas_c 1\n"
        "# HELP kaas_d None yet.\n# TYPE kaas_d counter\n"
    )
