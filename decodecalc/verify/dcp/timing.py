"""The time of one layer of context parallelism between processes on GPUs, against the prediction.

Every process captures the same number of layers in one CUDA graph and replays it equally often, because a collective
waits for all of them; the numbers are those of the first process. Written for two GPUs and more; it needs `torchrun`.
"""

from __future__ import annotations

from typing import Any

from decodecalc.analysis.traffic import traffic
from decodecalc.cost.breakeven import undivided
from decodecalc.keyshare import AG_RS
from decodecalc.verify.claims.claim import OFF, PASS, Finding, Quantity
from decodecalc.verify.dcp.group import ONE_SHOT, ProcessRanks
from decodecalc.verify.dcp.trial import DcpTrial
from decodecalc.verify.report.bars import P90_BAR
from decodecalc.verify.run.execution import execution_of
from decodecalc.verify.run.inputs import layer_bytes, make_inputs
from decodecalc.verify.run.timing import captured, layers_needed, replay_times, rounds_needed, summarise
from decodecalc.verify.run.trial import Trial

REPLAYS = 20


def layer_times(trial: DcpTrial) -> Finding:
    """Finding 10: kernel alone, exchange alone by every way, the whole layer, and the same layer on one GPU."""
    from decodecalc.cost import predict

    group = trial.group
    assert isinstance(group, ProcessRanks)
    divided = _many_layers(trial, trial.plan_of(group.mine[0]))
    geo, batch = trial.case.scenario.geometry, trial.case.scenario.batch
    rank = trial.case.plan
    assert rank is not None
    own = geo.q_heads // group.size
    q = divided.inputs.q[:, group.mine[0] * own : (group.mine[0] + 1) * own].contiguous()
    config = divided.run.timed or divided.run.launch
    space, out, entries = divided.workspace(config), divided.output(), divided.split_list(config)
    lse = out.new_empty(out.shape[:2]).float()

    def kernel(layer: int) -> None:
        divided.launch(config, layer, workspace=space, out=out, lse=lse, split_list=entries)

    def layer_by(way: str) -> Any:
        def whole(layer: int) -> None:
            group.gathered(q)
            kernel(layer)
            group.own_heads(out, lse, way)

        return whole

    alone_s = _time(group, kernel, divided.inputs.layers)
    said = predict(divided.plan, calibration=trial.calibration, kernel="bundled")
    quantities, totals = [], {}
    for way in group.ways:
        totals[way] = _time(group, layer_by(way), divided.inputs.layers)
    used = geo.share.exchange if geo.share is not None else AG_RS
    total = totals[used]
    quantities.append(Quantity(f"layer by {used}", said.known_s, total, "s"))
    quantities.append(Quantity("kernel on this rank's keys", said.known_s - said.terms["exchange_s"], alone_s, "s"))
    for way, seconds in totals.items():
        predicted = said.terms["exchange_s"] if way == used else None
        quantities.append(Quantity(f"exchange by {way}", predicted, seconds - alone_s, "s"))
    policy = trial.case.policy
    plan = policy.plan(undivided(geo), batch, trial.whole.kv, rank.gpu, {}, trial.case.version)
    single = _many_layers(trial, plan)
    plain = single.run.timed or single.run.launch
    buffers, listed = (single.workspace(plain), single.output()), single.split_list(plain)

    def undivided_layer(layer: int) -> None:
        single.launch(plain, layer, workspace=buffers[0], out=buffers[1], split_list=listed)

    one = _time(group, undivided_layer, single.inputs.layers)
    without = predict(plan, calibration=trial.calibration, kernel="bundled")
    quantities.append(Quantity("the same layer without dividing", without.known_s, one, "s"))
    error = abs(total - said.known_s) / total
    inside = said.interval is not None and said.interval[0] <= total <= said.interval[1]
    ok = error <= P90_BAR or inside
    facts = {
        "total_s": total, "predicted_total_s": said.total_s, "predicted_low_s": said.low_s,
        "predicted_high_s": said.high_s, "without_dcp_s": one, "exchange_s": total - alone_s,
        "one_shot_s": totals.get(ONE_SHOT, alone_s) - alone_s if ONE_SHOT in totals else None,
    }  # fmt: skip
    how = f"{group.how}; CUDA graphs over {divided.inputs.layers} layers with their own KV, {REPLAYS} replays"
    return Finding(10, PASS if ok else OFF, tuple(quantities), how, "" if ok else f"{error:.0%} off", facts=facts)


def _many_layers(trial: DcpTrial, plan: Any) -> Trial:
    """A trial of this plan over as many layers of random keys as overflow the L2, equally many on every process."""
    size, read = layer_bytes(plan.geometry, plan.kv, plan.batch), traffic(plan).kv_read_bytes
    layers, cold = layers_needed(read, size, trial.device.l2_bytes, trial.device.free_bytes())
    layers = min(trial.group.collect(layers))
    inputs = make_inputs(plan.geometry, plan.batch, plan.kv, trial.device.torch_name, layers, trial.seed)
    run = execution_of(plan, trial.calibration)
    return Trial(trial.case, plan, run, inputs, trial.device, cold, trial.calibration)


def _time(group: ProcessRanks, per_layer: Any, layers: int) -> float:
    """Seconds of a layer, the median of equally many replays on every process."""

    def graph_of(rounds: int) -> Any:
        def all_layers() -> None:
            for layer in range(rounds * layers):
                per_layer(layer % layers)

        return captured(all_layers)

    for layer in range(2):  # compiled, and the communicators are made
        per_layer(layer % layers)
    graph = graph_of(1)
    once_s = summarise(replay_times(graph, 3))[0]
    rounds = max(group.collect(rounds_needed(layers, once_s)))
    graph = graph_of(rounds)
    replay_times(graph, 2)
    return summarise(replay_times(graph, REPLAYS))[0] / (rounds * layers)
