"""Claims about the hardware: which SMs work, how many blocks each holds, the bytes that left DRAM, and the roof."""

from __future__ import annotations

from decodecalc.analysis.occupancy import occupancy
from decodecalc.analysis.roofline import roofline
from decodecalc.analysis.traffic import traffic
from decodecalc.intmath import cdiv
from decodecalc.launch.plan import LaunchPlan
from decodecalc.verify.claims.claim import FAIL, OFF, PASS, Finding, Quantity, exact, skip
from decodecalc.verify.run.driver import driver_blocks_per_sm
from decodecalc.verify.run.execution import Execution, listed_requests, predicted_kernels
from decodecalc.verify.run.residency import most_at_once, resident_blocks
from decodecalc.verify.run.trial import Trial

KV_TOLERANCE = 0.02  # of the KV bytes, against DRAM counters
KV_SLACK_BYTES = 128 * 1024  # queries, page table, code and constants come from DRAM too when all caches are empty
ROOF_TOLERANCE = 0.02


def coverage(trial: Trial) -> Finding:
    """5. SMs with at least one live block, and live blocks per SM.

    The hardware gives the first blocks of a grid to one SM each, in launch order. Where all of these are live, exactly
    min(live blocks, SMs) SMs work. A block among them that exits at once (in ragged batches, or as padding) still takes
    the turn of an SM. Then at least as many SMs work as there are live blocks in the first turn, and at most min(live
    blocks, SMs).
    """
    if not trial.device.is_cuda:
        return skip(5, "SM ids need a CUDA device")
    predicted, record = occupancy(trial.plan), trial.record
    sms = record.sm[record.exited == 0]
    used = len(sms.unique())
    per_sm = sms.bincount(minlength=predicted.sm_count)
    most = min(predicted.live_blocks, predicted.sm_count)
    least = live_among_first(trial.plan, trial.run, predicted.sm_count)
    waves = Quantity(
        "live blocks per SM (waves)",
        predicted.live_blocks / predicted.sm_count,
        len(sms) / predicted.sm_count,
        "blocks",
    )
    quantities = (
        Quantity("SMs with a live block", most if least == most else f"{least} to {most}", used, "SMs"),
        waves,
        Quantity("most live blocks on one SM", None, int(per_sm.max()), "blocks"),
    )
    how = "SM ids written by each block of the instrumented kernel"
    how += (
        ""
        if least == most
        else "; early exits among the first blocks of the grid take the turns of SMs, so a range is predicted"
    )
    ok = least <= used <= most and waves.agrees
    reason = "" if ok else f"{used} SMs have a live block, {least} to {most} were predicted; waves {waves.observed:.3f}"
    return Finding(5, PASS if ok else FAIL, quantities, how, reason)


def live_among_first(plan: LaunchPlan, run: Execution, count: int) -> int:
    """Predicted number of live blocks among the first `count` of the grid, in which row blocks vary fastest, then
    requests, then splits."""
    x, y, z = predicted_kernels(plan, run)[0].grid
    listed = listed_requests(plan) if run.launch.listed else None
    heads, group = plan.geometry.kv_heads, plan.geometry.group
    found = 0
    for block in range(min(count, x * y * z)):
        column, request, split = block % x, block // x % y, block // (x * y)
        if listed is not None:
            request, split = listed[block // x] if block // x < len(listed) else plan.batch.size, 0
        if request >= plan.batch.size:
            continue  # a padded row
        has_rows = column % (x // heads) * plan.live_rows < plan.batch.q_lens[request] * group
        found += has_rows and split < plan.splits.live[request]
    return found


def residency(trial: Trial) -> Finding:
    """6. Blocks that one SM holds at a time."""
    if not trial.device.is_cuda:
        return skip(6, "resident blocks need a CUDA device")
    kernel, plan, record = trial.recorded_kernel, trial.plan, trial.record
    if kernel is None or kernel.registers is None or kernel.shared_bytes is None:
        return skip(6, "the profiler did not report registers and shared memory")
    most = resident_blocks(plan.gpu, kernel.threads, kernel.registers, kernel.shared_bytes)
    if most is None:
        return skip(6, f"the SM limits of {plan.gpu.label} are not known")
    live = record.exited == 0
    blocks = zip(record.sm[live].tolist(), record.begin_ns[live].tolist(), record.finish_ns[live].tolist())
    at_once = most_at_once(blocks)
    bound = min(most, cdiv(plan.live_blocks, plan.gpu.sm_count))
    per_sm = driver_blocks_per_sm(kernel)
    quantities = [
        Quantity("blocks that fit an SM", most, per_sm if per_sm is not None else at_once, "blocks"),
        Quantity("most at one time on an SM", None, at_once, "blocks"),
    ]
    how = (
        f"{kernel.registers} registers, {kernel.shared_bytes} B shared, {kernel.threads} threads (CUPTI) through the "
        "occupancy arithmetic; driver's occupancy call; begin and end times written by each block"
    )
    if per_sm is not None and per_sm != most:
        return exact(6, quantities, how)
    if at_once > most:
        return Finding(
            6, FAIL, tuple(quantities), how, f"{at_once} blocks were on an SM at once that should hold {most}"
        )
    return Finding(6, PASS, tuple(quantities), how, f"this launch can reach {bound}")


def kv_bytes(trial: Trial) -> Finding:
    """8. Bytes that stage 1 read from DRAM."""
    counted = trial.counted
    if counted is None:
        return skip(8, trial.extras.get("counters", "needs --counters and Nsight Compute (ncu)"))
    want = walked_bytes(trial)
    moved = traffic(trial.plan)
    quantities = [
        Quantity("DRAM bytes read by stage 1", want, counted.stage1_dram_read_bytes, "B"),
        Quantity("L2 bytes written by stage 1", moved.partial_written_bytes or moved.output_bytes,
                 counted.stage1_l2_write_bytes, "B"),
    ]  # fmt: skip
    if counted.merge_l2_read_bytes is not None:
        quantities.append(
            Quantity("L2 bytes read by the merge", moved.partial_read_bytes, counted.merge_l2_read_bytes, "B")
        )
    gap = abs(counted.stage1_dram_read_bytes - want)
    ok = gap <= max(KV_TOLERANCE * want, KV_SLACK_BYTES)
    reason = "" if ok else f"{gap} B off, more than {KV_TOLERANCE:.0%} and more than {KV_SLACK_BYTES} B"
    return Finding(8, PASS if ok else FAIL, tuple(quantities), "ncu, caches flushed before each kernel", reason)


def walked_bytes(trial: Trial) -> int:
    """The prediction, in bytes: the keys that the plan's blocks walk (whole tiles at the edge of a window), each
    counted once."""
    plan = trial.plan
    return round(sum(plan.keys_read) * plan.kv.bytes_per_key(plan.geometry))


def observed_bytes(trial: Trial) -> tuple[float, str]:
    """The KV bytes of stage 1 and where they were observed: in DRAM counters, otherwise in the keys that the blocks
    walked."""
    if trial.counted is not None:
        return float(trial.counted.stage1_dram_read_bytes), "DRAM counters"
    record, plan = trial.record, trial.plan
    per_head = record.grid[0] // plan.geometry.kv_heads
    walked = (record.end - record.start).clamp(min=0) * (record.exited == 0)
    keys = int(walked[:, :, ::per_head].sum())
    return keys * plan.kv.bytes_per_key(plan.geometry) / plan.geometry.kv_heads, "keys walked by the blocks"


def intensity(trial: Trial) -> Finding:
    """9. FLOP per byte, and the share of the roof that was reached."""
    if not trial.device.is_cuda:
        return skip(9, "only a GPU has a roof")
    plan = trial.plan
    roof = roofline(plan)
    seen, where = observed_bytes(trial)
    quantities: list[Quantity] = [
        Quantity("intensity", roof.intensity_flop_per_byte, roof.flop / seen if seen else 0.0, "FLOP/B")
    ]
    total_s = trial.times.total.median_s
    verdict, reason = PASS, ""
    gap = abs(seen - roof.kv_read_bytes)
    if gap > max(ROOF_TOLERANCE * roof.kv_read_bytes, KV_SLACK_BYTES):
        verdict, reason = (
            OFF,
            f"{seen:.0f} B were read for {roof.kv_read_bytes} useful B (perhaps whole tiles at the edge of a window)",
        )
    if roof.hbm_bytes_per_s:
        achieved = roof.kv_read_bytes / total_s
        predicted = roof.kv_read_bytes / trial.prediction.known_s / roof.hbm_bytes_per_s
        share = achieved / roof.hbm_bytes_per_s
        quantities.append(Quantity("share of the memory roof", predicted, share, "of 1"))
        if share > 1:
            verdict, reason = FAIL, "it was faster than the memory roof, so the KV did not all come from memory"
    facts = {
        "intensity_flop_per_byte": roof.flop / seen if seen else 0.0,
        "achieved_flop_per_s": roof.flop / total_s,
        "achieved_bytes_per_s": roof.kv_read_bytes / total_s,
    }
    how = f"bytes by {where}; time as in claim 10"
    return Finding(9, verdict, tuple(quantities), how, reason, trial.times.total.spread, facts)
