"""What the headings of tables and the words of answers mean: the one home of their definitions.

`decodecalc glossary TERM` shows a term, and pages explain their headings by it. A test holds that the headings of all
tables are here. Codes of gates and refusals have their sentences beside the engines (`launch.codes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from decodecalc.errors import UnknownNameError
from decodecalc.tables.table import Column, Table, alike
from decodecalc.units import counted, listed

HEADING, WORD, GATE, REFUSAL = "heading", "word", "gate", "refusal"


class Term(NamedTuple):
    """One meaning of one term."""

    name: str
    """The term as it is printed."""
    meaning: str
    """What it means, in full sentences."""
    kind: str = HEADING
    """`heading` of a table, `word` of an answer, `gate` or `refusal` (a code)."""
    commands: tuple[str, ...] = ()
    """Commands whose tables use this meaning, where another command has another; empty for all."""


def terms() -> Iterator[Term]:
    """Every term: words and headings, then codes. Codes load the modules in which engines keep them."""
    from decodecalc.engines.registry import all_codes

    yield from WORDS
    yield from HEADINGS
    codes = all_codes()
    for name, meaning in sorted(codes.gates.items()):
        yield Term(name, meaning, GATE)
    for name, meaning in sorted(codes.refusals.items()):
        yield Term(name, meaning, REFUSAL)


def meaning(heading: str, command: str) -> str | None:
    """What a heading means in the table of a command; None where it has no definition."""
    found = [term for term in HEADINGS if term.name == heading]
    mine = [term for term in found if command in term.commands] or [term for term in found if not term.commands]
    return mine[0].meaning if mine else None


def meanings(table: Table) -> dict[str, str]:
    """What the headings of a table mean, by heading."""
    titles = [column.title for column in table.shown_columns()]
    found = {title: meaning(title, table.command) for title in titles}
    return {title: text for title, text in found.items() if text is not None}


def find(name: str) -> list[Term]:
    """Every meaning of a term, letter case, dashes and underscores ignored. UnknownNameError names the nearest."""
    wanted = alike(name)
    known = list(terms())
    found = [term for term in known if alike(term.name) == wanted]
    if not found:
        where = _elsewhere(wanted)
        if where is not None:
            return [where]
        raise UnknownNameError("term", name, {term.name for term in known}, "`decodecalc glossary` lists all terms.")
    return found


def _elsewhere(name: str) -> Term | None:
    """What a name is that has a command of its own."""
    from decodecalc.engines.registry import engine_names
    from decodecalc.gpus import gpu_names
    from decodecalc.models import zoo_names

    for what, command, names in (
        ("an engine", "engines", engine_names()), ("a GPU", "gpus", gpu_names()), ("a model", "models", zoo_names()),
    ):  # fmt: skip
        for known in names:
            if alike(known) == name:
                return Term(known, f"It is {what}: `decodecalc {command} {known}` shows it.", WORD)
    return None


def glossary_table(name: str | None = None) -> Table:
    """One row for each meaning: of one term, or of all."""
    found = list(terms()) if name is None else find(name)
    rows: list[dict[str, Any]] = [
        {"term": t.name, "meaning": t.meaning, "kind": t.kind, "commands": list(t.commands)} for t in found
    ]
    first = found[0]
    answer = f"{first.name}: {first.meaning}"
    if name is None:
        answer = f"{counted(len(rows), 'meaning')} of terms are listed; `decodecalc glossary TERM` shows one term."
    columns = [
        Column("term", "term", align="left", rank=0),
        Column("meaning", "meaning", align="left", rank=0),
        Column("kind", "kind of term", align="left", rank=2),
        Column("commands", "in the tables of", lambda v: listed(v) if v else "", align="left", rank=2),
    ]
    inputs = {} if name is None else {"term": name}
    if len(rows) == 1:  # the answer says it all
        return Table("glossary", inputs, rows, (), shown=(), answer=answer)
    return Table("glossary", inputs, rows, columns, answer=answer)


def _of(commands: str, *pairs: tuple[str, str]) -> tuple[Term, ...]:
    return tuple(Term(name, text, commands=tuple(commands.split())) for name, text in pairs)


def _all(*pairs: tuple[str, str]) -> tuple[Term, ...]:
    return tuple(Term(name, text) for name, text in pairs)


HEADINGS = (
    # The scenario of a row.
    *_all(
        (
            "engine",
            "The engine whose rule was asked: a kernel of a server or a library. `decodecalc engines` lists them.",
        ),
        ("version", "The version of the engine's rule, by the release that it was read from."),
        ("asked", "An arrow marks what --server or --engine asked for first."),
        (
            "default of",
            "Servers whose newest release runs this engine here by itself. (@VERSION) says that the server runs that "
            "version of the engine and not the one of the row.",
        ),
        ("model", "The model, by its name in the zoo or the name of its file."),
        ("GPU", "The GPU, by its name in the list of `decodecalc gpus`."),
        ("TP", "The tensor-parallel degree: over how many GPUs the heads of each layer are divided."),
        ("KV dtype", "The element type in which keys and values are stored."),
        (
            "layers",
            "The group of layers that share a shape, for example those with a window and those without.",
        ),
        ("batch", "The number of requests that are decoded together in one step."),
        ("keys", "The number of keys of a request: the tokens that are already in its cache."),
        (
            "query tokens",
            "The tokens that a request asks for in one step: 1, or more with speculative decoding.",
        ),
        ("kernel", "The kernel that runs."),
    ),
    # grid
    *_all(
        ("path", "Whether the keys of a request are split over blocks (split, 3d) or not (unsplit, 2d)."),
        ("grid", "The extents of the launch: blocks along x, y and z."),
        ("blocks", "Blocks that the launch has, with or without keys to read."),
        ("live blocks", "Blocks that have keys to read or state to write; the others return at once."),
        (
            "blocks in window",
            "Live blocks with keys inside the layer's window; the others write a neutral state.",
        ),
        ("coverage", "The share of the SMs that get at least one block with keys to compute on."),
        (
            "waves",
            "Blocks with keys over SMs: 2.00 means that every SM gets two, one after the other or together.",
        ),
        ("splits asked", "Splits of a request that the engine's rule asks for."),
        ("splits launched", "Splits of a request that the grid has room for."),
        ("splits live", "Splits of a request that have keys to read, after rounding and early exits."),
        (
            "S*",
            "The smallest split count whose first wave covers every SM. It counts blocks and need not be the fastest.",
        ),
        ("S_opt", "The split count of least predicted time, for the bundled kernel."),
        ("merge grid", "The extents of the launch that combines the partial states of the splits."),
    ),
    # predict
    *_all(
        ("time", "The predicted time of the attention of one layer in one decode step."),
        ("low", "The lower end of the interval that is meant to hold 90 % of measured times."),
        ("high", "The upper end of the interval that is meant to hold 90 % of measured times."),
        ("token time", "The predicted time of the attention of all layers for one token."),
        ("at least", "A time that no kernel can beat: the launches, and the bytes at the sustained bandwidth."),
        ("bound by", "The part of the time that is largest."),
        ("launching", "The part of the time that launches take."),
        ("start", "The part of the time in which blocks begin and end."),
        ("stream", "The part of the time in which the bytes come from memory."),
        ("latency", "The part of the time in which blocks wait for loads that are not hidden."),
        ("compute", "The part of the time in which the tensor cores are the limit."),
        ("tail", "The part of the time in which only the last wave or the longest request still runs."),
        ("gap", "The part of the time between the first kernel and the merge."),
        (
            "overhead + bytes",
            "A simpler estimate to compare with: launches plus the bytes at the sustained bandwidth.",
        ),
        ("numbers", "Where the parameters of the time model come from: measured, fitted or extrapolated."),
    ),
    *_of("predict audit", ("merge", "The part of the time in which the partial states are combined.")),
    *_of(
        "predict roofline",
        (
            "roofline",
            "The larger of bytes over the data sheet's bandwidth and FLOP over its peak: a lower bound and no "
            "prediction.",
        ),
    ),
    *_of("predict", ("extrapolated", "How many parameters of the prediction were taken from another GPU.")),
    *_all(
        (
            "part",
            "Which keys the launch reads: the prefix that requests share, or the suffix that each has for itself.",
        ),
        (
            "repeating",
            "Blocks without work of their own that walk the first request's keys once more. They do not count as live.",
        ),
        ("without DCP", "The predicted time of one layer where every rank reads all keys of a sequence."),
        ("exchange", "The least time in which ranks exchange queries and partial outputs for one layer."),
        (
            "whole time",
            "The predicted time of one layer where each request reads all its keys, the shared ones included. Where "
            "the shared keys fit the L2 cache, the memory delivers them once.",
        ),
        (
            "shared time",
            "The predicted time of one layer where shared keys are read separately: prefix, own keys and merge.",
        ),
        ("prefix", "The part of the shared time in which the keys that requests share are read."),
        ("own keys", "The part of the shared time in which the keys that each request has for itself are read."),
        ("shared launches", "Kernels that are launched for one layer where shared keys are read separately."),
        ("bytes saved", "Bytes of keys and values that one layer need not read where shared keys are read once."),
        ("least prefix", "The number of shared keys from which on reading them separately is predicted to be faster."),
    ),
    # choose
    *_all(
        ("S now", "Splits of a request with keys under the engine's own rule."),
        ("S to set", "Splits of a request that the advised setting asks for."),
        (
            "time now",
            "The predicted time of one layer with the engine's own kernel and rule. It is missing where that kernel "
            "was not calibrated.",
        ),
        ("time then", "The predicted time of one layer with the advised setting."),
        (
            "setting",
            "What to pass to the server, for the step of the row alone. It is shown only where its values were timed "
            "on a GPU and the gain exceeds the error of two predictions' ratio.",
        ),
        (
            "saved per token",
            "The time that the setting, or the best split count, saves for one token over all layers.",
        ),
        ("time at S_opt", "The predicted time of one layer with the bundled kernel at S_opt."),
        ("rule's time", "The predicted time of the bundled kernel when it is launched by the engine's rule."),
        ("regret", "The rule's time over the time at S_opt: 1x is no loss."),
        ("keys per split", "Keys that each split reads."),
        ("time / best time", "The time at this split count over the time at S_opt."),
    ),
    *_of("choose", ("splits", "The split count of the row.")),
    # merge
    *_all(
        ("bytes per state", "Bytes of one partial state: what one split leaves for one token and query head."),
        ("states written", "Bytes of partial states that the splits of one layer write."),
        ("states read", "Bytes of partial states that the merge of one layer reads back."),
        (
            "KV read a layer",
            "Bytes of keys and values that one layer reads in one decode step, each key once, on one GPU.",
        ),
        (
            "KV read a step",
            "Bytes of keys and values that all layers of the group read in one decode step, on one GPU.",
        ),
        ("states / KV", "Bytes of partial states, written and read, over the bytes of KV that are read."),
        (
            "buffers / KV",
            "The bytes of partial states over the bytes of KV if every launched split had keys. It is an upper "
            "bound, and not what is moved.",
        ),
        (
            "states a step",
            "Bytes of partial states that all layers of the group write and read in one decode step.",
        ),
    ),
    # roofline
    *_all(
        ("FLOP", "Floating-point operations of the two matrix products of one layer in one decode step."),
        ("FLOP/B", "The intensity: FLOP for each byte of keys and values that is read."),
        ("ridge FLOP/B", "The intensity at which the GPU's peak and its bandwidth are in balance."),
        (
            "ridge / intensity",
            "The GPU's ridge over the layer's intensity: above 1 the layer is memory-bound by this factor.",
        ),
        ("tile rows", "Query rows of a block's tile, as the tensor cores compute them."),
        ("live rows", "Rows of the tile that hold a query; the others are padding."),
        ("wasted rows", "The share of the tile's rows that hold no query."),
        ("tile KV bytes", "Bytes of keys and values that one tile loads."),
        ("tile FLOP", "Useful FLOP of one tile."),
    ),
    *_of(
        "roofline models",
        (
            "kind",
            "How query heads share keys: MHA (each its own), GQA (groups), MQA (all one) or MLA (all one latent vector "
            "that is both key and value).",
        ),
    ),
    # segments
    *_all(
        ("request", "The number of the request in the batch, from 0."),
        (
            "split",
            "The number of the split, from 0. A split is a slice of a request's keys with blocks of its own.",
        ),
        ("first key", "The first key of the split, counted from 0."),
        ("end key", "The number of the first key after the split."),
        ("keys in split", "Keys of the split."),
        ("tiles", "Loop iterations that the keys of the split take."),
        ("visible keys", "Keys of the split that a query token can see: those inside the window."),
        (
            "state",
            "live: the split has keys to read. outside window: none of its keys is visible. early exit: it was "
            "launched without keys.",
        ),
    ),
    # paging
    *_all(
        ("page size", "Keys that a page of the cache holds, as the kernel sees it."),
        ("layout", "How a kernel finds a key: by a block table of page ids, or by an index for every key."),
        ("table entries", "Page ids in the table of one request."),
        ("table bytes", "Bytes of the page ids in the table of one request."),
        ("table / KV head", "The bytes of the table over the bytes of one KV head's keys and values."),
        ("tile keys", "Keys that one loop iteration loads."),
        ("page ids per tile", "Page ids that a tile needs before its keys can be loaded."),
        ("tile spans pages", "Whether a tile can begin in one page and end in another."),
        ("contiguous bytes", "The longest piece of a tile's keys that lies in one place in memory."),
        ("allocator page", "Keys of a page as the server allocates it."),
        ("kernel pages in it", "Pages of the kernel in one page of the allocator."),
    ),
    # kv
    *_all(
        ("tokens of a sequence", "The length of a sequence, prompt and output together."),
        (
            "stored on one GPU",
            "Bytes that the cache of such a sequence takes on one GPU, over all its layers, in whole pages.",
        ),
        (
            "stored on all GPUs",
            "Bytes that the cache of such a sequence takes on all GPUs together, copies included.",
        ),
        (
            "read a step on one GPU",
            "Bytes that one decode step reads of such a sequence on one GPU, over all its layers: what the new token "
            "sees, each key once.",
        ),
        ("sequences that fit", "How many sequences of this length fit beside the weights."),
        ("tokens that fit", "The tokens of all sequences that fit."),
        (
            "stored for a token",
            "Bytes that one more token takes on one GPU, over all its layers, while no window is full.",
        ),
    ),
    # step and serve
    *_all(
        ("attention", "The predicted time of the attention of all layers in one decode step."),
        (
            "least rest",
            "The least time of everything else in a decode step: to read the weights once, to read and write "
            "recurrent states, to write the new keys and to exchange data between GPUs.",
        ),
        (
            "least step",
            "The least time of a whole decode step. A real one takes longer, because launches, activations, routing "
            "and sampling are not counted.",
        ),
        (
            "attention's share",
            "The share of a step that attention takes, as a range: attention takes its 90 % interval, and the rest "
            "takes from the least rest to twice as long.",
        ),
        ("weight bytes", "Bytes of weights that a step reads on one GPU."),
        ("weights' time", "The least time to read the weights of a step."),
        ("state bytes", "Bytes of recurrent states that a step reads and writes on one GPU."),
        ("states' time", "The least time to read and write the recurrent states of a step."),
        ("rank exchanges", "The least time of the exchanges of data between GPUs."),
        ("per layer", "The predicted time of the attention of one layer."),
        ("fits", "Whether this many sequences fit beside the weights."),
    ),
    *_of(
        "serve",
        ("blocks", "Blocks that have keys to read or state to write."),
        ("splits", "Splits of a request that have keys to read."),
    ),
    # models, GPUs, engines
    *_all(
        ("name", "The name by which commands take it."),
        ("hub id", "The id of the model's repository on the Hugging Face hub, which commands take as well."),
        ("attention layers", "Layers with softmax attention; other layers keep a recurrent state or nothing."),
        ("query heads", "Query heads of a layer, on one GPU where a degree is given."),
        ("KV heads", "Key and value heads of a layer, on one GPU where a degree is given."),
        ("head dim", "Elements of one key."),
        ("value dim", "Elements of one value."),
        ("valid TP", "Tensor-parallel degrees that divide the heads."),
        ("layer group", "The name of a group of layers that share a shape."),
        ("group", "Query heads that share one KV head."),
        (
            "KV bytes of a key (bf16)",
            "Bytes that one token takes in one layer with a bf16 cache: its key and its value.",
        ),
        ("window", "Keys that a query token sees at most, its own included."),
        ("chunk", "Tokens of a chunk: a query token sees the keys of its own chunk only."),
        ("topk", "Cache entries that a query token reads from the list of a sparse layer."),
        ("compress ratio", "Tokens that one entry of a sparse layer's list stands for."),
        (
            "indexer",
            "Query heads x elements of an index key of the part that makes a sparse layer's list. It reads every "
            "index key of the sequence.",
        ),
        ("sinks", "Whether the softmax has one more logit for each head that belongs to no key."),
        ("stored layers", "Layers that store keys of their own; others read what an earlier layer stored."),
        ("KV replicas", "GPUs that hold the same KV heads."),
        ("architecture", "The architecture of the GPU."),
        ("SMs", "Streaming multiprocessors of the GPU (compute units of AMD)."),
        ("memory", "The memory of the GPU by its data sheet."),
        ("bandwidth", "The memory bandwidth of the GPU by its data sheet."),
        ("L2", "The size of the GPU's L2 cache."),
        ("bf16 TFLOP/s", "The peak for dense bf16 matrices with FP32 accumulation."),
        ("fp8 TFLOP/s", "The peak for dense fp8 matrices with FP32 accumulation."),
        ("kernels measured", "How many kernels have time parameters that were measured on this GPU."),
        ("kernels fitted", "How many kernels have time parameters that were fitted to public timings of this GPU."),
        ("kernels extrapolated", "How many kernels have time parameters that were taken from another GPU."),
        ("field", "The name of a number or a fact of the GPU."),
        ("value", "The value of the field."),
        ("unit", "The unit of the value."),
        (
            "confidence",
            "How sure the value is: a data sheet, a driver, another text, or derived from other values.",
        ),
        ("source", "The document or the query that the value was read from."),
        ("other sources say", "Values that other sources have instead."),
        ("note", "A remark on the value or on its sources."),
        ("what it is", "The kernel in words."),
        (
            "newest version",
            "The newest release that the rule was read from, and how many older ones are known.",
        ),
        ("name for a split", "The engine's own word for a split."),
        ("split flag", "How a user sets the split count, where that is possible."),
        ("option", "The name of the option, for --opt NAME=VALUE."),
        ("kind of value", "What the option takes: int, bool, str, a list (s), or nothing as well (?)."),
        ("default", "The value of the option where none is given."),
        ("engine's flag", "The engine's own flag or argument for the option."),
        ("help", "What the option does."),
        ("package", "The Python package that was found."),
        ("package version", "The version of that package."),
        ("can run here", "Whether `verify --kernel own` can run this kernel on this machine."),
        ("policy's version", "The version of our rule that belongs to the package."),
        (
            "found at",
            "Whether the package is installed or comes from the peer folder, a copy of engines' packages.",
        ),
        ("function that is called", "The function of the package that launches the kernel."),
        ("why it cannot run", "What is missing."),
        ("installed version", "The version of the package that is installed."),
        ("policy", "Our rule of the engine, which the installed source is compared with."),
        ("checks", "Facts of the source that were compared."),
        ("differing checks", "Facts of the source that differ from our rule."),
        ("term", "The term that is explained."),
        ("meaning", "What the term means."),
        ("kind of term", "Whether it is a heading, a word of answers, or the code of a gate or a refusal."),
        ("in the tables of", "The commands whose tables use the term in this sense, where it has several."),
    ),
    *_of("models", ("layers", "Layers of the model, or of the group of layers in the row.")),
    # verify, report and audit
    *_all(
        ("engine's rule", "The engine whose rule launched the kernel that was checked."),
        ("claim", "The number of the claim: a prediction of one kind that is held against the machine."),
        ("what is claimed", "The claim in words."),
        ("quantity", "The quantity that was compared."),
        ("predicted", "The value that the policy's plan and its analysis give."),
        (
            "observed",
            "The value that the profiler, the blocks' own records, poisoned buffers, hardware counters and clocks "
            "give.",
        ),
        ("difference", "Observed minus predicted, or that over the predicted value."),
        ("reason", "Why a check has its verdict."),
        ("scenario", "The layer and the step that were run."),
        ("case", "The layer, the step and the engine that were run."),
        ("rows", "Checks of this kind."),
        ("error", "The error of the predicted time."),
        ("largest error", "The largest error of a predicted time in this group."),
        ("mean error", "The mean error of the predicted times in this group."),
        ("90th percentile", "The error that 90 % of the predicted times stay below."),
        ("mean error of roofline", "The mean error of the roofline as an estimate of the same times."),
        (
            "mean error of overhead + bytes",
            "The mean error of launches plus bytes as an estimate of the same times.",
        ),
        ("times of", "The group of times."),
        ("launched splits", "Splits of a request that the grid has room for."),
        ("why it is refused", "Why the engine does not run the step."),
        (
            "status",
            "Whether the launch is what should have run: match, consistent, mismatch, or what is missing to tell.",
        ),
        ("predicted grid", "The grid that the engine's rule gives."),
        ("stage 1 time", "The median time of the kernel that reads the keys, by the trace."),
        ("merge time", "The median time of the kernel that combines partial states, by the trace."),
        ("share of kernel time", "The share of the time of all kernels in the trace."),
        ("KV read rate", "Bytes of keys and values over the measured time."),
        ("predicted time", "The predicted time of the planned launch."),
    ),
    *_all(
        ("against prediction", "The measured time over the predicted one, in words."),
        ("checked", "Checks of this claim that were made."),
        ("passed", "Checks that hold."),
        ("failed", "Checks that do not hold."),
        ("errors", "Checks that ended in an error of the run itself."),
        ("off", "Times that missed their tolerance."),
        ("skipped", "Checks that could not be made, and were left out."),
    ),
    *_of("audit", ("launches", "How often the launch stands in the trace.")),
    *_of("predict", ("launches", "Kernels that are launched for one layer.")),
    *_of("audit", ("measured", "The median time of the launch by the trace, its merge included.")),
    *_of("audit", ("predicted", "The predicted time of the planned launch.")),
    *_of("audit", ("L2", "Whether the prediction takes the KV cache from memory (cold) or from the L2 cache (warm).")),
    *_of("verify report", ("measured", "The time that was measured.")),
    *_of("verify report", ("kind", "The kind of check or of difference.")),
    *_of(
        "verify report installed engines",
        (
            "verdict",
            "Whether the check holds. off means that one time missed its tolerance; a run fails only when the mean "
            "error is too large.",
        ),
    ),
)

WORDS = tuple(
    Term(name, text, WORD)
    for name, text in (
        (
            "split",
            "A slice of one request's keys that is given to thread blocks of its own. Engines say segment, KV split, "
            "chunk or partition.",
        ),
        ("policy", "One engine's rule for path, splits and grid, with the version that it was read from."),
        ("layer group", "The layers of a model that share a geometry."),
        ("geometry", "The shape of one attention layer as one GPU sees it: heads, widths, window, sinks."),
        ("block", "A thread block of the GPU (CTA, Triton program)."),
        ("SM", "A streaming multiprocessor: the part of a GPU on which blocks run."),
        ("wave", "The blocks that run at the same time, one on each SM."),
        ("tile", "The keys that one loop iteration of a block loads."),
        ("stage 1", "The kernel that reads the keys; with splits it writes partial states."),
        ("merge", "The kernel, or the end of the kernel, that combines the partial states of the splits."),
        (
            "partial state",
            "What one split leaves for one token and query head: an output and the numbers that weigh it.",
        ),
        ("gate", "A named condition of an engine's rule, such as a batch below a threshold."),
        (
            "refusal",
            "An engine's answer to a layer, a cache or a GPU that it does not run. It has a code and a reason.",
        ),
        ("KV cache", "The stored keys and values of all tokens so far. Every decode step reads them."),
        ("page", "A block of the KV cache that holds the keys and values of a fixed number of tokens."),
        ("step", "One decode step: every request of the batch gets its next token."),
        ("token", "What one decode step produces for each request. A time for a token adds up all layers."),
        ("rank", "One GPU of those that share a model."),
        ("zoo", "The models that are known by name."),
        (
            "bundled kernel",
            "The Triton kernel that comes with this package. It can be launched by every engine's rule, so that rules "
            "can be compared without the kernels' own speed.",
        ),
        ("own kernel", "The kernel that the engine itself launches."),
        (
            "calibration",
            "The measured parameters of the time model. A GPU that was not measured gets scaled parameters of another.",
        ),
        (
            "cold L2",
            "The KV cache comes from memory, because other layers have used the L2 since the last step.",
        ),
        (
            "CUDA graph",
            "A recorded sequence of launches that a server replays, so that launching costs little.",
        ),
        ("batch-invariant", "The result of a request does not depend on the rest of its batch."),
        ("MHA", "Multi-head attention: every query head has keys of its own."),
        ("GQA", "Grouped-query attention: a group of query heads shares the keys of one KV head."),
        ("MQA", "Multi-query attention: all query heads share the keys of one KV head."),
        (
            "MLA",
            "Multi-head latent attention: all query heads share one latent vector that is both key and value.",
        ),
        ("DCP", "Decode context parallelism: the tokens of one sequence are divided over GPUs."),
        ("PP", "Pipeline parallelism: the layers are divided over GPUs."),
        ("DP", "Data parallelism: requests are divided over copies of the model."),
    )
)
