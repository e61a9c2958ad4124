"""Parts of gpu_run.sh: each is one process, writes a JSON line per finding to $OUT/results.jsonl, and prints it.

    python gpu_run.py PART [--small]      parts: env, edge, compare, layers, ops, shapes, time, capture, flex, train

--small runs a part on tiny shapes, on whatever device there is: the rehearsal without a GPU.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import importlib.util
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
import traceback
import types
import warnings
from pathlib import Path

START = time.monotonic()
OUT = Path(os.environ.get('OUT') or '/tmp/gpu_run_out')
ROOT = Path(os.environ.get('MMATTN_ROOT', '.')).resolve()
sys.path.insert(0, str(ROOT / 'tools/benchmarks'))
sys.path.insert(0, str(ROOT))
warnings.filterwarnings('ignore', message='.*mmattn.*may be faster.*')

import torch  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = 'cuda' if GPU else 'cpu'


def record(part: str, **fields) -> None:
    """Append a JSON line, and print it short."""
    OUT.mkdir(parents=True, exist_ok=True)
    line = json.dumps(
        {'part': part, 's': round(time.monotonic() - START, 1), **fields}, ensure_ascii=False, default=str
    )
    with open(OUT / 'results.jsonl', 'a', encoding='utf-8') as file:
        file.write(line + '\n')
    print(line[:600], flush=True)


def guarded(part: str, **fields):
    """Record an exception in place of ending the part."""

    @contextlib.contextmanager
    def manager():
        try:
            yield
        except Exception as error:  # noqa: BLE001
            where = traceback.format_exc().strip().splitlines()
            record(part, **fields, error=f'{type(error).__name__}: {str(error)[:400]}', trace=where[-8:])

    return manager()


def milliseconds(call, repeats: int, most: float = 1.5) -> float:
    """Median ms of a call by events, after two warm-up calls; fewer repeats if they would take longer than ``most`` s."""
    if not GPU:
        call()
        start = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - start)
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    once = time.perf_counter() - start
    repeats = max(3, min(repeats, int(most / max(once, 1e-6))))
    times = []
    for _ in range(repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last))
    return statistics.median(times)


def mebibytes(call) -> float:
    """Peak MiB of a call beyond what was allocated before."""
    if not GPU:
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return peak / 2**20


def launches(call) -> int:
    """Count the kernels that a call launches."""
    if not GPU:
        return 0
    from torch.profiler import ProfilerActivity, profile

    try:
        call()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            call()
            torch.cuda.synchronize()
        return sum(event.count for event in profiler.key_averages() if event.device_type.name == 'CUDA')
    except Exception:  # noqa: BLE001  a number less
        return -1


@functools.cache
def criss_cross_class():
    """mmcv's CrissCrossAttention, which is pure PyTorch, from an mmcv without compiled operators."""
    import mmcv

    path = Path(mmcv.__file__).parent / 'ops/cc_attention.py'
    source = path.read_text(encoding='utf-8').replace('@MODELS.register_module()', '')
    module = types.ModuleType('cc_attention')
    exec(compile(source, str(path), 'exec'), module.__dict__)  # noqa: S102
    return module.CrissCrossAttention


# ---------------------------------------------------------------------------------------------------- environment


def env(small: bool) -> None:
    """Versions, ceilings of the card, what SDPA chooses, what mmattn finds."""
    with guarded('env', what='versions'):
        from mmattn.ops import library, triton
        from mmattn.ops.gpu.collect_env import collect_env

        info = collect_env()
        record('env', what='collect_env', **info)
        record(
            'env',
            what='library',
            file=library.FILE,
            reason=library.UNAVAILABLE_REASON,
            cuda={x: library.has_kernel(x, 'cuda') for x in library.KERNELS},
            triton=triton.unavailable_reason(),
        )
    if not GPU:
        return
    with guarded('env', what='card'):
        properties = torch.cuda.get_device_properties(0)
        record(
            'env',
            what='card',
            name=properties.name,
            sms=properties.multi_processor_count,
            shared_optin=getattr(properties, 'shared_memory_per_block_optin', None),
            cudnn=torch.backends.cudnn.version(),
            sdp_order=str(torch._C._get_sdp_priority_order()),
            tf32=(torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        )
        a, b = (torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16) for _ in range(2))
        ms = milliseconds(lambda: a @ b, 10)
        x = torch.randn(2**29, device='cuda')
        y = torch.empty_like(x)
        copy = milliseconds(lambda: y.copy_(x), 10)
        record(
            'env',
            what='ceilings',
            bf16_tflops=round(2 * 8192**3 / ms / 1e9),
            copy_gb_s=round(2 * x.nbytes / copy / 1e6),
        )
    with guarded('env', what='sdpa'):
        from torch.backends.cuda import (
            SDPAParams,
            can_use_cudnn_attention,
            can_use_efficient_attention,
            can_use_flash_attention,
        )

        for dtype in (torch.float32, torch.bfloat16):
            for d in (64, 256):
                for grad in (False, True):
                    q = torch.randn(1, 1, 128, d, device='cuda', dtype=dtype)
                    table = torch.randn(1, 1, 128, 128, device='cuda', dtype=dtype, requires_grad=grad)
                    for mask in (None, table):
                        given = SDPAParams(q, q, q, mask, 0.0, False, False)
                        record(
                            'env',
                            what='sdpa',
                            dtype=str(dtype),
                            d=d,
                            mask=mask is not None,
                            mask_grad=grad,
                            cudnn=can_use_cudnn_attention(given),
                            flash=can_use_flash_attention(given),
                            efficient=can_use_efficient_attention(given),
                        )


# ---------------------------------------------------------------------------------------------------- correctness


def errors_of(actual, expected, dtype) -> dict[str, float]:
    """Largest error in units of the tolerance of check_gpu, and NaNs, by tensor."""
    eps = torch.finfo(dtype).eps
    found = {}
    least = 1e-3 * max((x.abs().max().item() for x in expected.values() if x.numel()), default=1)
    for name, x in expected.items():
        x, y = x.double().cpu(), actual[name].double().cpu()
        scale = max(x.abs().max().item(), least, 1e-30) if x.numel() else 1
        allowed = eps * x.abs() + (1e-5 if dtype == torch.float32 else 2 * eps) * scale
        found[name] = (
            0.0 if not x.numel() else round(((y - x).abs() / allowed).nan_to_num(nan=float('inf')).max().item(), 3)
        )
    return found


def edge_cases():
    """(operator, title, tensors, settings): what the tests don't run on a GPU."""
    from mmattn.ops.support import strided_offsets

    g = torch.Generator().manual_seed(0)
    r = lambda *s: torch.randn(*s, generator=g, dtype=torch.float64)  # noqa: E731
    cases = []

    def qkv(at, size, channels=(16, 16)):
        return {
            'query': r(*at, *size, channels[0]),
            'key': r(*at, *size, channels[0]),
            'value': r(*at, *size, channels[1]),
        }

    for side, title in ((8, 'N = 64'), (9, 'N = 81'), (16, 'N = 256')):
        t = qkv((2, 2), (side, side)) | {'window_bias': r(2, 2, side, side, 9), 'outside_bias': r(2, 2, side, side)}
        mask = torch.ones(2, side, side, dtype=torch.bool)
        mask[0] = False
        cases.append(
            ('global_attention', f'a sample without keys, {title}', t | {'key_mask': mask}, {'window_size': 3})
        )
    t = qkv((2, 1), (8, 8), (64, 64))
    t['window_bias'], t['outside_bias'] = r(2, 1, 8, 8, 9) - 200, r(2, 1, 8, 8) - 200
    cases.append(('global_attention', 'logits near -200, N = 64 (pytorch#196678)', t, {'window_size': 3}))
    t = qkv((1, 1), (7, 15)) | {'window_bias': r(1, 1, 7, 15, 9)}
    cases.append(('global_attention', 'outside -inf, N = 105', t, {'window_size': 3, 'outside_bias': -float('inf')}))
    t = qkv((1, 1), (24, 24), (64, 64)) | {'window_bias': r(1, 1, 24, 24, 9)}
    cases.append(
        (
            'global_attention',
            'outside -inf, N = 576: whole blocks of keys of -inf',
            t,
            {'window_size': 3, 'outside_bias': -float('inf')},
        )
    )
    t = qkv((1, 1), (11, 12), (256, 256)) | {'window_bias': r(1, 1, 11, 12, 9), 'outside_bias': r(1, 1, 11, 12)}
    cases.append(('global_attention', '256 channels', t, {'window_size': 3}))
    cases.append(('global_attention', 'causal, N = 127', qkv((2, 3), (127,)), {'is_causal': True}))
    cases.append(('global_attention', 'causal, N = 320', qkv((1, 2), (320,)), {'is_causal': True}))
    cases.append(('global_attention', 'content, 33 channels of 17', qkv((2, 3), (9, 7), (33, 17)), {}))
    t = qkv((2, 1), (9, 11), (64, 512)) | {'window_bias': r(2, 1, 9, 11, 13), 'outside_bias': r(2, 1, 9, 11)}
    cases.append(('grid_attention', '64 and 512 channels', t, {'window_size': 7}))
    cases.append(('grid_attention', 'a line of one position', qkv((1, 2), (1, 9)), {}))
    for pattern in ('block', 'centred', 'forward', 'strided'):
        size, step = (5, 6, 7), (2, 3, 3)
        t = qkv((2, 2), size)
        t['offset_bias'] = [r(2, 2, *size, len(o)) for o in strided_offsets(size, step, pattern)]
        cases.append(
            ('strided_attention', f'{pattern}, sizes that are no multiples', t, {'pattern': pattern, 'step': step})
        )
    t = {'query': r(1, 2, 4, 11, 16), 'key': r(1, 2, 4, 5, 16), 'value': r(1, 2, 4, 5, 16)}
    cases.append(('strided_attention', 'queries without keys', t, {'pattern': 'block', 'step': 3}))
    t = qkv((2, 4), (9, 7)) | {'window_bias': r(2, 4, 9, 7, 9)}
    cases.append(('local_attention', 'T = 3', t, {'kernel_size': 3, 'iterations': 3}))
    cases.append(('local_attention', 'dilation beyond the map', qkv((1, 2), (5, 4)), {'kernel_size': 5, 'dilation': 9}))
    cases.append(
        ('dynamic_conv', '13x13', {'value': r(2, 3, 9, 11, 5), 'logits': r(2, 3, 9, 11, 169)}, {'kernel_size': 13})
    )
    return cases


LAYOUTS = {
    'contiguous': lambda x: x,
    'channels first': lambda x: x.movedim(-1, 2).contiguous().movedim(2, -1),
    'sliced': lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    'odd offset': lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape) if x.numel() else x,
}


def edge_group(group: str) -> None:
    """One process of :func:`edge`."""
    os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')  # for deterministic algorithms
    import mmattn.ops
    from mmattn.ops import backends
    from mmattn.ops.gpu import check_gpu
    from mmattn.ops.gpu.cases import Case

    kind, dtype_name = group.split(':')
    dtype = getattr(torch, dtype_name)
    todo = edge_cases()
    if kind in ('composition', 'native', 'triton'):
        for operator, title, tensors, settings in todo:
            if kind != 'composition' and {'native': 'cuda'}.get(kind, kind) not in backends.available_kernels(operator):
                continue
            moved = {n: [y.to(DEVICE) for y in x] if isinstance(x, list) else x.to(DEVICE) for n, x in tensors.items()}
            with guarded('edge', group=group, operator=operator, case=title):
                with backends.backend('reference'):
                    expected = check_gpu.evaluate(operator, Case('', tensors, settings), dtype, torch.float64)
                try:
                    with backends.backend(kind), backends.kernels_run() as ran:
                        actual = check_gpu.evaluate(operator, Case('', moved, settings), dtype, dtype)
                except RuntimeError as error:
                    if 'has no kernel for these tensors' not in str(error):
                        raise
                    continue
                found = errors_of(actual, expected, dtype)
                worst = max(found, key=found.get)
                record(
                    'edge',
                    group=group,
                    operator=operator,
                    case=title,
                    ok=found[worst] <= (4 if kind == 'composition' else 1),
                    worst=found[worst],
                    tensor=worst,
                    ran=len(ran),
                )
    elif kind == 'layout':
        for operator, title, tensors, settings in todo[:9] + todo[9:]:
            for layout, change in LAYOUTS.items():
                with guarded('edge', group=group, operator=operator, case=title, layout=layout):
                    results = []
                    for move in (lambda x: x, change):
                        moved = {
                            n: [move(y.to(DEVICE, dtype)) for y in x]
                            if isinstance(x, list)
                            else move(x.to(DEVICE, dtype))
                            if x.is_floating_point()
                            else x.to(DEVICE)
                            for n, x in tensors.items()
                        }
                        leaves = [
                            y.requires_grad_()
                            for x in moved.values()
                            for y in (x if isinstance(x, list) else [x])
                            if y.is_floating_point()
                        ]
                        with backends.backend('composition'):
                            out = getattr(mmattn.ops, operator)(**moved, **settings)
                            grads = torch.autograd.grad(out.float().sin().sum(), leaves)
                        results.append({str(i): x.detach() for i, x in enumerate([out, *grads])})
                    found = errors_of(results[1], results[0], dtype)
                    if max(found.values()) > 4:
                        record(
                            'edge', group=group, operator=operator, case=title, layout=layout, ok=False, errors=found
                        )
        record('edge', group=group, ok=True, done=True)
    elif kind == 'layers':
        layer_checks(group, dtype)
    elif kind == 'modes':
        modes(group, dtype)


def layer_checks(group: str, dtype: torch.dtype) -> None:
    """Layers on the GPU, and under autocast, beside themselves in float64 on the CPU."""
    from mmattn import layers

    torch.manual_seed(0)
    built = {
        'Bi-NL': (layers.BilateralNonLocal2d(32, window_size=7), (2, 32, 13, 12)),
        'Bi-CC': (layers.BilateralCrissCrossAttention(32, window_size=7), (2, 32, 13, 12)),
        'BA': (layers.LocalBilateralAttention(32), (2, 32, 13, 12)),
        'BA, T = 3': (layers.LocalBilateralAttention(32, share=True, iterations=3), (2, 32, 13, 12)),
        'TransformerAttention2d 1111': (layers.TransformerAttention2d(32, 4, '1111'), (2, 32, 9, 8)),
        'GridAttention3d': (layers.GridAttention3d(32), (1, 3, 6, 7, 32)),
        'StridedAttention3d': (layers.StridedAttention3d(32), (1, 3, 6, 7, 32)),
    }
    for name, (layer, shape) in built.items():
        with guarded('edge', group=group, case=name):
            with torch.no_grad():
                for parameter in layer.parameters():
                    if parameter.numel() == 1:
                        parameter.fill_(1.0)
            x = torch.randn(shape, dtype=torch.float64)
            extra = {'frame_numbers': torch.arange(shape[1]).expand(shape[0], -1)} if len(shape) == 5 else {}

            def run(layer, x, extra, autocast):
                x = x.requires_grad_()
                with autocast:
                    out = layer(x, **extra)
                names, parameters = zip(*layer.named_parameters())
                grads = torch.autograd.grad(out.double().sin().sum(), [x, *parameters], allow_unused=True)
                return {n: y for n, y in zip(('output', 'x', *names), (out.detach(), *grads)) if y is not None}

            expected = run(layer.double(), x.clone(), extra, contextlib.nullcontext())
            there = layer.float().to(DEVICE)
            moved = {n: y.to(DEVICE) for n, y in extra.items()}
            autocast = contextlib.nullcontext() if dtype == torch.float32 else torch.autocast(DEVICE, dtype)
            with torch.backends.cudnn.flags(enabled=True, allow_tf32=False) if GPU else contextlib.nullcontext():
                actual = run(there, x.float().to(DEVICE), moved, autocast)
            least = 1e-2 * max(y.norm().item() for y in expected.values())  # some gradients vanish but for rounding
            norms = {
                n: ((actual[n].double().cpu() - y).norm() / max(y.norm().item(), least)).item()
                for n, y in expected.items()
            }
            worst = max((n for n in norms if norms[n] == norms[n]), key=norms.get, default='output')
            limit = 1e-3 if dtype == torch.float32 else 2e-1
            bad = {n: v for n, v in norms.items() if not v <= limit}
            record(
                'edge',
                group=group,
                case=name,
                ok=not bad,
                worst=f'{worst} {norms[worst]:.2e}',
                output=f'{norms["output"]:.2e}',
                bad={n: f'{v:.2e}' for n, v in list(bad.items())[:6]},
            )


def modes(group: str, dtype: torch.dtype) -> None:
    """Side streams, deterministic algorithms, checkpointing, empty batches, float64, a second thread, > 2^31 elements."""
    import threading

    from torch.utils.checkpoint import checkpoint

    from mmattn import ops
    from mmattn.ops import backends

    def nl(b, side, c, k, dtype=dtype, positions=True):
        x = [torch.randn(b, 1, side, side, c, device=DEVICE, dtype=dtype).requires_grad_() for _ in range(3)]
        w = torch.randn(b, 1, side, side, k * k, device=DEVICE, dtype=dtype).requires_grad_()
        o = torch.randn(b, 1, side, side, device=DEVICE, dtype=dtype).requires_grad_()
        call = lambda q, k_, v, w, o: ops.global_attention(q, k_, v, window_bias=w, window_size=k, outside_bias=o)  # noqa: E731
        return call, [*x, w, o]

    def both(call, tensors):
        out = call(*tensors)
        return [out.detach(), *torch.autograd.grad(out.float().sin().sum(), tensors)]

    def same(title, a, b, exact=False):
        worst = max(
            ((x.double() - y.double()).abs().max() / y.double().abs().max().clamp(min=1e-12)).item()
            for x, y in zip(a, b)
        )
        finite = all(x.isfinite().all().item() for x in a)
        limit = 0 if exact else (1e-4 if dtype == torch.float32 else 3e-2)
        record('edge', group=group, case=title, ok=finite and worst <= limit, worst=worst)

    torch.manual_seed(0)
    with backends.backend('composition'):
        call, tensors = nl(2, 17, 32, 7)
        expected = both(call, tensors)
        with guarded('edge', group=group, case='a side stream'):
            if GPU:
                stream = torch.cuda.Stream()
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    actual = both(call, tensors)
                torch.cuda.current_stream().wait_stream(stream)
            else:
                actual = both(call, tensors)
            same('a side stream', actual, expected)
        with guarded('edge', group=group, case='deterministic algorithms'):
            torch.use_deterministic_algorithms(True)
            try:
                first, second = both(call, tensors), both(call, tensors)
            finally:
                torch.use_deterministic_algorithms(False)
            same('deterministic algorithms, twice', first, second, exact=True)
        with guarded('edge', group=group, case='activation checkpointing'):
            same('checkpoint', both(lambda *t: checkpoint(call, *t, use_reentrant=False), tensors), expected)
            out = checkpoint(call, *tensors, use_reentrant=True)
            out.float().sin().sum().backward()
            same('checkpoint, reentrant', [out.detach(), *(x.grad for x in tensors)], expected)
            for x in tensors:
                x.grad = None
        with guarded('edge', group=group, case='empty batch'):
            empty_call, empty = nl(0, 9, 16, 3)
            out = both(empty_call, empty)
            record('edge', group=group, case='empty batch', ok=out[0].numel() == 0)
        with guarded('edge', group=group, case='another thread'):
            found = []
            thread = threading.Thread(target=lambda: found.extend(both(call, tensors)))
            thread.start()
            thread.join(60)
            same('another thread', found, expected) if found else record(
                'edge', group=group, case='another thread', ok=False
            )
        with guarded('edge', group=group, case='sum().backward() with an expanded gradient'):
            out = call(*tensors)
            out.sum().backward()
            record(
                'edge',
                group=group,
                case='an expanded gradient',
                ok=all(x.grad is not None and x.grad.isfinite().all().item() for x in tensors),
            )
        with guarded('edge', group=group, case='float64'):
            c64, t64 = nl(1, 9, 16, 3, torch.float64)
            record('edge', group=group, case='float64', ok=all(x.isfinite().all().item() for x in both(c64, t64)))
        if GPU and dtype == torch.bfloat16:
            with guarded('edge', group=group, case='more than 2^31 elements'):
                b, side, k = 3, 129, 217  # window_bias: 3 * 16641 * 47089 = 2.35e9 numbers
                q = torch.randn(b, 1, side, side, 8, device=DEVICE, dtype=dtype)
                w = torch.randn(b, 1, side, side, k * k, device=DEVICE, dtype=dtype).div_(8)
                out = ops.global_attention(q, q, q, window_bias=w, window_size=k, outside_bias=0.0)
                last = ops.global_attention(q[2:], q[2:], q[2:], window_bias=w[2:], window_size=k, outside_bias=0.0)
                same('more than 2^31 elements, forward', [out[2:]], [last])
                del w, out, last
            with guarded('edge', group=group, case='65,536 and more groups'):
                q = torch.randn(1, 8, 16, 128, 128, 8, device=DEVICE, dtype=dtype).requires_grad_()
                out = ops.strided_attention(q, q, q, pattern='block', step=(1, 2, 2))
                out.float().square().sum().backward()
                record(
                    'edge',
                    group=group,
                    case='65,536 and more groups',
                    ok=bool(out.isfinite().all() and q.grad.isfinite().all()),
                )


def pool(function, tasks, workers: int, seconds: float, part: str) -> None:
    """Run tasks in fresh processes, some at a time; a process that dies or hangs is a finding."""
    context = multiprocessing.get_context('spawn')
    end = time.monotonic() + seconds
    waiting, running = list(tasks), []
    while waiting or running:
        while waiting and len(running) < workers:
            task = waiting.pop(0)
            process = context.Process(target=function, args=(task,))
            process.start()
            running.append((process, task))
        time.sleep(0.05)
        late = time.monotonic() > end
        for item in list(running):
            process, task = item
            if process.exitcode is not None or late:
                running.remove(item)
                if process.exitcode is None:
                    process.kill()
                if process.exitcode != 0:
                    record(
                        part,
                        task=str(task),
                        ok=False,
                        error='ran out of time' if late else f'exit code {process.exitcode}',
                    )
                process.join()
        if late:
            for task in waiting:
                record(part, task=str(task), ok=False, error='not started in time')
            return


def edge(small: bool) -> None:
    """Correctness that the tests do not cover, in a process per group."""
    kinds = ['composition', 'layers', 'modes', 'native', 'triton', 'layout']
    dtypes = ['bfloat16', 'float32', 'float16']
    tasks = [f'{kind}:{dtype}' for kind in kinds for dtype in dtypes if not (kind == 'layout' and dtype == 'float16')]
    if not GPU:
        tasks = [
            'composition:float32',
            'composition:bfloat16',
            'layers:float32',
            'layers:bfloat16',
            'modes:float32',
            'layout:bfloat16',
        ]
    pool(edge_group, tasks, int(os.environ.get('WORKERS', 8)), float(os.environ.get('PART_S', 100)), 'edge')


def compare_task(task) -> None:
    """One process of :func:`compare`."""
    operator, kernel, dtypes, quick = task
    from mmattn.ops import backends
    from mmattn.ops.gpu import check_gpu

    backends._apply({})
    start = time.monotonic()
    with guarded('compare', operator=operator, kernel=kernel, dtypes=dtypes):
        wrong = check_gpu.compare_all(operator, kernel, dtypes, DEVICE if not GPU else 'cuda:0', quick)
        record(
            'compare',
            operator=operator,
            kernel=kernel,
            dtypes=dtypes,
            ok=not wrong,
            wrong=wrong,
            took=round(time.monotonic() - start, 1),
        )


def compare(small: bool) -> None:
    """The comparison of check_gpu, full size, all kernels at once: Triton compiles on all cores, and its cache fills."""
    from mmattn.ops import backends, library

    tasks = [
        (operator, kernel, dtypes, small)
        for operator in library.KERNELS
        for kernel in backends.available_kernels(operator)
        for dtypes in ('16 bit', 'float32')
    ]
    tasks.sort(key=lambda task: (task[1] != 'triton', task[0] != 'global_attention'))  # the longest first
    if not GPU:
        tasks = [(operator, 'cuda', 'float32', True) for operator in library.KERNELS]
    pool(compare_task, tasks, int(os.environ.get('WORKERS', 16)), float(os.environ.get('PART_S', 110)), 'compare')


# ---------------------------------------------------------------------------------------------------- times


def time_(small: bool) -> None:
    """The times of check_gpu for the kernels that were correct; writes a verdict below $OUT."""
    os.environ['MMATTN_CACHE'] = str(OUT)
    from mmattn.ops import backends, library
    from mmattn.ops.gpu import check_gpu, verdict

    backends._apply({})
    lines = (
        [json.loads(x) for x in (OUT / 'results.jsonl').read_text(encoding='utf-8').splitlines()]
        if (OUT / 'results.jsonl').exists()
        else []
    )
    correct = {
        (x['operator'], x['kernel'], x['dtypes']): x['wrong'] for x in lines if x['part'] == 'compare' and 'wrong' in x
    }
    findings = {}
    order = [
        ('local_attention', 'cuda'),
        ('dynamic_conv', 'cuda'),
        ('global_attention', 'triton'),
        ('grid_attention', 'triton'),
        ('strided_attention', 'triton'),
        ('global_attention', 'cuda'),
        ('grid_attention', 'cuda'),
        ('strided_attention', 'cuda'),
    ]
    for operator, kernel in order:
        for dtypes in ('16 bit', 'float32'):
            wrong = correct.get((operator, kernel, dtypes)) if GPU else {}
            if wrong is None or len(wrong) == 2:
                continue
            with guarded('time', operator=operator, kernel=kernel, dtypes=dtypes):
                times = check_gpu.time_all(operator, kernel, dtypes, 'cuda:0' if GPU else 'cpu', not GPU or small)
                for pass_, finding in times.items():
                    finding = verdict.Finding('incorrect', message=wrong[pass_]) if pass_ in wrong else finding
                    findings[verdict.Key(operator, kernel, dtypes, pass_)] = finding
                    record(
                        'time', operator=operator, kernel=kernel, dtypes=dtypes, **{'pass': pass_}, **finding._asdict()
                    )
                if GPU:
                    verdict.write(verdict.machine(0), findings)


MODES = {'float32': None, 'amp bfloat16': torch.bfloat16, 'amp float16': torch.float16}


def layer_pairs(small: bool):
    """Comparison → (title → layer, the stock layer last; shape of the input)."""
    from mmcv.cnn import NonLocal2d
    from mmcv.cnn.bricks import GeneralizedAttention
    from torch import nn

    from layers import AllPositions, OfClip  # tools/benchmarks
    from mmattn import layers

    channels, side, batch = (32, 9, 1) if small else (512, 97, 2)
    clip = (1, 2, 4, 4, 16) if small else (1, 8, 32, 56, 256)
    side_t = 9 if small else 64

    def attended(terms='1111'):
        layer = layers.AttendedResidual(channels, dict(type='mmattn.TransformerAttention2d', num_heads=8, terms=terms))
        return layer

    yield (
        'BA',
        lambda: {
            'BA': layers.LocalBilateralAttention(channels // 2),
            'BA, shared, T = 3': layers.LocalBilateralAttention(channels // 2, share=True, iterations=3),
            '3x3 convolution': nn.Conv2d(channels // 2, channels // 2, 3, padding=1),
        },
        (batch * 4, channels // 2, side - 1, side - 1),
    )
    yield (
        'Bi-NL',
        lambda: {
            'Bi-NL': layers.BilateralNonLocal2d(channels),
            'Bi-NL, no positions': layers.BilateralNonLocal2d(channels, position='none'),
            'Bi-NL, sqrt_dim': layers.BilateralNonLocal2d(channels, smoothing='sqrt_dim'),
            'mmcv NonLocal2d': NonLocal2d(channels),
        },
        (batch, channels, side, side),
    )
    yield (
        'Bi-CC',
        lambda: {
            'Bi-CC': layers.BilateralCrissCrossAttention(channels),
            'Bi-CC, no positions': layers.BilateralCrissCrossAttention(channels, position='none'),
            'mmcv CrissCrossAttention': criss_cross_class()(channels),
        },
        (batch, channels, side, side),
    )
    yield (
        'SST',
        lambda: {
            'SST (Grid)': OfClip(layers.GridAttention3d(clip[-1])),
            'SST (Strided)': OfClip(layers.StridedAttention3d(clip[-1])),
            'all positions, SDPA': AllPositions(clip[-1], 8),
        },
        clip,
    )
    yield (
        'attended residual 1111',
        lambda: {
            'attended residual 1111': attended(),
            'mmcv GeneralizedAttention 1111': GeneralizedAttention(
                channels, num_heads=8, kv_stride=1, attention_type='1111'
            ),
        },
        (batch, channels, side_t, side_t),
    )


def layers_(small: bool) -> None:
    """Time, peak memory and launches of layers, beside stock layers."""
    from mmattn.ops import backends

    repeats = 3 if small else 15
    backend = os.environ.get('GPU_RUN_BACKEND', 'composition')
    for comparison, build, shape in layer_pairs(small):
        with guarded('layers', comparison=comparison):
            torch.manual_seed(0)
            built = build()
            for mode, dtype in MODES.items():
                if mode == 'amp float16' and comparison not in ('Bi-NL', 'BA'):
                    continue
                x = torch.randn(shape, device=DEVICE).requires_grad_()
                for title, layer in built.items():
                    stock = title == list(built)[-1]
                    with (
                        guarded('layers', comparison=comparison, title=title, mode=mode),
                        backends.backend('auto' if stock else backend),
                    ):
                        layer.to(DEVICE).train()

                        def forward():
                            with torch.no_grad(), torch.autocast(DEVICE, dtype) if dtype else contextlib.nullcontext():
                                return layer(x)

                        def both():
                            with torch.autocast(DEVICE, dtype) if dtype else contextlib.nullcontext():
                                out = layer(x)
                            return torch.autograd.grad(out.sum(), [x, *layer.parameters()], allow_unused=True)

                        for name, call in (('forward', forward), ('forward + backward', both)):
                            record(
                                'layers',
                                comparison=comparison,
                                title=title,
                                stock=stock,
                                mode=mode,
                                **{'pass': name},
                                backend='' if stock else backend,
                                ms=round(milliseconds(call, repeats), 4),
                                mib=round(mebibytes(call), 1),
                                launches=launches(call) if mode == 'amp bfloat16' else None,
                            )
                del x
            del built
            if GPU:
                torch.cuda.empty_cache()


@contextlib.contextmanager
def supported(name: str, dtype: torch.dtype, title: str):
    """A kernel that does not support a call is no failure."""
    try:
        yield
    except RuntimeError as error:
        if 'has no kernel for these tensors' not in str(error):
            raise
        record('ops', workload=name, dtype=str(dtype), title=title, supported=False)


@contextlib.contextmanager
def formulas(title: str):
    """Compositions without SDPA where the title says so."""
    from mmattn.ops.compositions import table_attention

    before, cudnn = table_attention.uses_sdpa, torch.backends.cuda.cudnn_sdp_enabled()
    if title.endswith('formulas'):
        table_attention.uses_sdpa = lambda device: False
    if title.endswith('no cuDNN'):  # which torch 2.11 prefers on an H100
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        table_attention.uses_sdpa = before
        torch.backends.cuda.enable_cudnn_sdp(cudnn)


WORK = (
    'P1',
    'P3',
    'P2',
    'P6, positions',
    'P5, positions',
    'dynamic_conv, 3×3',
    'P3, T = 3',
    'P1z',
    'P5',
    'P6, 8 heads',
    'dynamic_conv, 13×13',
    'P7 1111',
)


def ops_(small: bool) -> None:
    """The workloads of tools/benchmarks/ops.py: compositions, CUDA and Triton kernels, and the alternatives."""
    import alternatives

    alternatives.criss_cross_attention = criss_cross_class
    import workloads
    from mmattn.ops import backends

    full = not small
    for name in WORK:
        for dtype in (torch.bfloat16, torch.float32):
            with guarded('ops', workload=name, dtype=str(dtype)):
                torch.manual_seed(0)
                work = workloads.WORKLOADS[name](full, dtype, DEVICE)
                contenders = {
                    backend: (backend, work.ours)
                    for backend in (('composition', 'native', 'triton') if GPU else ('composition', 'reference'))
                }
                if name[:2] in (
                    'P1',
                    'P6',
                    'P7',
                ):  # the chunks without PyTorch's attention, as on CPUs: cuBLAS and element-wise kernels
                    contenders['composition, formulas'] = 'composition', work.ours
                    contenders['composition, no cuDNN'] = 'composition', work.ours
                contenders |= {peer: ('auto', call) for peer, call in work.peers.items() if peer != 'FlexAttention'}
                for title, (backend, call) in contenders.items():
                    with (
                        guarded('ops', workload=name, dtype=str(dtype), title=title),
                        supported(name, dtype, title),
                        backends.backend(backend),
                        formulas(title),
                    ):
                        forward = lambda: _no_grad(call)  # noqa: E731, B023
                        both = lambda: torch.autograd.grad(call.function(*call.inputs).sum(), call.inputs)  # noqa: E731, B023
                        with backends.kernels_run() as ran:
                            forward()
                        if backend == 'triton' and not ran:
                            continue  # no Triton kernel, or it failed
                        for of, function in (('forward', forward), ('forward + backward', both)):
                            if of in call.passes:
                                record(
                                    'ops',
                                    workload=name,
                                    dtype=str(dtype),
                                    title=title,
                                    ran=sorted(set(ran)),
                                    **{'pass': of},
                                    ms=round(milliseconds(function, 15, 0.6), 4),
                                    mib=round(mebibytes(function), 1),
                                )
                del work, contenders
            if GPU:
                torch.cuda.empty_cache()


def _no_grad(call):
    with torch.no_grad():
        return call.function(*call.inputs)


def flex(small: bool) -> None:
    """FlexAttention, compiled, beside the composition: Bi-NL's core."""
    import workloads
    from mmattn.ops import backends

    side, channels, k = (21, 64, 7) if small else (97, 256, 31)
    for dtype in (torch.bfloat16, torch.float32):
        with guarded('flex', dtype=str(dtype)):
            ours, peers = workloads.bi_nl_calls(side, channels, k, dtype, DEVICE)
            call = peers['FlexAttention']
            for of, function in (
                ('forward', lambda: _no_grad(call)),
                ('forward + backward', lambda: torch.autograd.grad(call.function(*call.inputs).sum(), call.inputs)),
            ):
                if of not in call.passes:
                    continue
                start = time.monotonic()
                with guarded('flex', dtype=str(dtype), **{'pass': of}):
                    function()
                    compiled = time.monotonic() - start
                    record(
                        'flex',
                        dtype=str(dtype),
                        **{'pass': of},
                        compile_s=round(compiled, 1),
                        ms=round(milliseconds(function, 15), 4),
                        mib=round(mebibytes(function), 1),
                    )
            with backends.backend('composition'):
                record(
                    'flex',
                    dtype=str(dtype),
                    title='composition',
                    ms=round(
                        milliseconds(lambda: torch.autograd.grad(ours.function(*ours.inputs).sum(), ours.inputs), 15), 4
                    ),
                )


def shapes(small: bool) -> None:
    """The first call of each new length, forward and backward, with and without cuDNN, which plans anew for each."""
    from mmattn import ops
    from mmattn.ops import backends

    for title, positions in (('content', False), ('window', True)):
        for cudnn in (True, False):
            with guarded('shapes', title=title, cudnn=cudnn), backends.backend('composition'):
                before = torch.backends.cuda.cudnn_sdp_enabled()
                torch.backends.cuda.enable_cudnn_sdp(cudnn)
                times = []
                for length in range(40, 52) if small else (40, *range(67, 90, 2)):
                    q = [
                        torch.randn(8, 8, length, 64, device=DEVICE, dtype=torch.bfloat16).requires_grad_()
                        for _ in range(3)
                    ]
                    more = {}
                    if positions:
                        q.append(torch.randn(8, 8, length, 9, device=DEVICE, dtype=torch.bfloat16).requires_grad_())
                        more = {'window_bias': q[3], 'window_size': 9}
                    if GPU:
                        torch.cuda.synchronize()
                    start = time.perf_counter()
                    torch.autograd.grad(ops.global_attention(*q[:3], **more).float().sum(), q)
                    if GPU:
                        torch.cuda.synchronize()
                    times.append(round(1e3 * (time.perf_counter() - start), 2))
                torch.backends.cuda.enable_cudnn_sdp(before)
                record('shapes', title=title, cudnn=cudnn, median_ms=statistics.median(times[1:]), times=times)


TUNED = {  # workloads of Triton kernels, by title: operator, size, channels of query and value, window or None, heads
    'global, 256 channels': ('global_attention', (97, 97), (256, 256), 31, 1),
    'global, 64 channels': ('global_attention', (97, 97), (64, 64), 31, 1),
    'global, 32 channels, content': ('global_attention', (64, 64), (32, 32), None, 8),
    'grid, 64 and 512 channels': ('grid_attention', (97, 97), (64, 512), 31, 1),
    'grid, 32 channels': ('grid_attention', (16, 64, 64), (32, 32), None, 1),
    'strided, 32 channels': ('strided_attention', (16, 64, 64), (32, 32), None, 1),
}
CONFIGS_TRIED = (
    (32, 32, 8, 2),
    (32, 32, 4, 2),
    (64, 32, 8, 2),
    (64, 32, 4, 2),
    (64, 64, 8, 2),
    (64, 64, 4, 2),
    (128, 32, 8, 2),
    (128, 64, 8, 2),
    (128, 64, 8, 3),
    (64, 32, 4, 3),
    (64, 16, 4, 2),
    (128, 128, 8, 2),
)


def tune_task(task) -> None:
    """Compile the kernels of a workload in a configuration, or measure each of them."""
    title, config, dtype_name, measure = task
    from mmattn import ops
    from mmattn.ops import backends
    from mmattn.ops.triton import launch

    operator, size, channels, window, heads = TUNED[title]
    dtype = getattr(torch, dtype_name)
    torch.manual_seed(0)
    r = lambda *shape: torch.randn(*shape, device=DEVICE, dtype=dtype).requires_grad_()  # noqa: E731
    batch = 1 if operator == 'global_attention' or len(size) == 3 else 2
    tensors = {n: r(batch, heads, *size, c) for n, c in zip(('query', 'key', 'value'), (channels[0], *channels))}
    settings = {}
    if window:
        entries = window**2 if operator == 'global_attention' else 2 * window - 1
        tensors |= {'window_bias': r(batch, heads, *size, entries), 'outside_bias': r(batch, heads, *size)}
        settings['window_size'] = window
    if operator == 'strided_attention':
        settings |= {'pattern': 'block', 'step': (4, 8, 8)}
        tensors['offset_bias'] = [r(batch, heads, *size, len(o)) for o in ops.strided_offsets(size, (4, 8, 8), 'block')]
    leaves = [y for x in tensors.values() for y in (x if isinstance(x, list) else [x])]
    launch.select_config = lambda kernel, shared, **_: launch.Config(*config)
    original, times = launch.launch, {}

    def timed(kernel, *arguments, **constants):
        name = ', '.join(filter(None, (kernel.__name__, constants.get('OPERAND'))))
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        original(kernel, *arguments, **constants)
        events[1].record()
        times.setdefault(name, []).append(events)

    if measure:
        launch.launch = timed
    with backends.backend('triton'), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        for _ in range(8 if measure else 1):
            out = getattr(ops, operator)(**tensors, **settings)
            torch.autograd.grad(out.float().square().sum(), leaves)
        torch.cuda.synchronize()
    failed = [str(x.message)[-120:] for x in caught if 'failed' in str(x.message)]
    if measure:
        found = {
            name: round(statistics.median(a.elapsed_time(b) for a, b in pairs[len(pairs) // 3 :]), 4)
            for name, pairs in times.items()
        }
        record('tune', title=title, config=config, dtype=dtype_name, ms=found, failed=failed)


def tune(small: bool) -> None:
    """Configurations of the Triton kernels: all are compiled at once, then each is measured alone."""
    if not GPU:
        return
    tasks = [
        (title, config, dtype)
        for dtype in ('bfloat16', 'float32')
        for title in TUNED
        for config in CONFIGS_TRIED
        if dtype == 'bfloat16' or (config[0] * config[1] <= 64 * 32 and config[3] == 2 and '256' not in title)
    ]
    pool(
        tune_task,
        [(*task, False) for task in tasks],
        int(os.environ.get('WORKERS', 16)),
        float(os.environ.get('PART_S', 100)),
        'tune',
    )
    for task in tasks:
        with guarded('tune', task=task):
            from mmattn.ops import backends

            backends._failures.clear()
            tune_task((*task, True))


def difference(actual, expected) -> float:
    """Largest norm of a difference, relative to its tensor, or to 1 % of the largest one where the tensor vanishes."""
    pairs = [(a, b) for a, b in zip(actual, expected) if b is not None]
    least = 1e-2 * max(b.norm().item() for _, b in pairs)
    return max(((a - b).norm() / b.norm().clamp(min=least)).item() for a, b in pairs)


def capture(small: bool) -> None:
    """CUDA graphs of a whole training step of a layer, and torch.compile."""
    from mmattn import layers
    from mmattn.ops import backends

    channels, side = (32, 9) if small else (256, 65)
    built = {
        'BA': (layers.LocalBilateralAttention(channels), (2, channels, side, side)),
        'Bi-NL': (layers.BilateralNonLocal2d(channels, window_size=15), (2, channels, side, side)),
        'Bi-CC': (layers.BilateralCrissCrossAttention(channels, window_size=15), (2, channels, side, side)),
        'SST (Strided)': (layers.StridedAttention3d(channels), (1, 4, 16, 16, channels)),
    }
    with backends.backend('composition'):
        for name, (layer, shape) in built.items():
            layer = layer.to(DEVICE)
            x = torch.randn(shape, device=DEVICE).requires_grad_()
            extra = [torch.arange(shape[1], device=DEVICE).expand(shape[0], -1)] if len(shape) == 5 else []
            call = (lambda y, layer=layer, extra=extra: layer(y, frame_numbers=extra[0])) if extra else layer

            def step():
                out = call(x)  # noqa: B023
                return out.detach(), torch.autograd.grad(
                    out.square().mean(), [x, *layer.parameters()], allow_unused=True
                )  # noqa: B023

            with guarded('capture', case=name, how='eager'):
                expected = step()
                record('capture', case=name, how='eager', ms=round(milliseconds(step, 15), 4), launches=launches(step))
            if GPU:
                with guarded('capture', case=name, how='graph'):
                    stream = torch.cuda.Stream()
                    stream.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(stream):
                        for _ in range(3):
                            step()
                    torch.cuda.current_stream().wait_stream(stream)
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        out, grads = step()
                    graph.replay()
                    torch.cuda.synchronize()
                    off = difference([out, *grads], [expected[0], *expected[1]])
                    record(
                        'capture',
                        case=name,
                        how='graph',
                        ok=off < 1e-3,
                        off=off,
                        ms=round(milliseconds(graph.replay, 15), 4),
                    )
            with guarded('capture', case=name, how='compile'):
                start = time.monotonic()
                compiled = torch.compile(call, dynamic=False)

                def compiled_step():
                    out = compiled(x)  # noqa: B023
                    return out.detach(), torch.autograd.grad(
                        out.square().mean(), [x, *layer.parameters()], allow_unused=True
                    )  # noqa: B023

                out, grads = compiled_step()
                took = time.monotonic() - start
                off = difference([out, *grads], [expected[0], *expected[1]])
                record(
                    'capture',
                    case=name,
                    how='compile',
                    ok=off < 1e-2,
                    off=off,
                    compile_s=round(took, 1),
                    ms=round(milliseconds(compiled_step, 15), 4),
                )


# ---------------------------------------------------------------------------------------------------- training

CONFIGS = (
    ('NL', 'configs/bi_nl/nl_r50-d8_4xb2-80k_cityscapes-769x769.py', (769, 769), 2),
    ('Bi-NL', 'configs/bi_nl/bi-nl_r50-d8_4xb2-80k_cityscapes-769x769.py', (769, 769), 2),
    ('CC', 'configs/bi_cc/cc_r50-d8_4xb2-80k_cityscapes-769x769.py', (769, 769), 2),
    ('Bi-CC', 'configs/bi_cc/bi-cc_r50-d8_4xb2-80k_cityscapes-769x769.py', (769, 769), 2),
    ('U-Net', 'configs/unet_ba/unet_r18-d8_1xb12-100e_lfw-pl-224x224.py', (224, 224), 12),
    ('U-Net-BA', 'configs/unet_ba/unet-ba_r18-d8_1xb12-100e_lfw-pl-224x224.py', (224, 224), 12),
)


KERNELS_OF = {'Bi-NL': ('formulas', 'triton', 'native'), 'Bi-CC': ('triton', 'native'), 'U-Net-BA': ('native',)}


def train(small: bool) -> None:
    """Iterations of mmseg's Runner with AMP on drawn images: ms per iteration, peak memory, losses."""
    only = os.environ.get('GPU_RUN_TRAIN', '').split(',') if os.environ.get('GPU_RUN_TRAIN') else None
    for title, path, size, batch in CONFIGS:
        if only and title not in only:
            continue
        runs = [(True, 'composition')]
        if GPU:
            runs += [(True, kernels) for kernels in KERNELS_OF.get(title, ())]
            runs += [(False, 'composition')] if title in ('NL', 'Bi-NL') else []
        for amp, kernels in runs:
            with guarded('train', title=title, amp=amp, kernels=kernels):
                train_one(
                    title,
                    path,
                    (65, 65) if small else size,
                    2 if small else batch,
                    amp,
                    3 if small else 24,
                    small,
                    kernels,
                )
            if GPU:
                torch.cuda.empty_cache()


def train_one(
    title: str, path: str, size: tuple[int, int], batch: int, amp: bool, iterations: int, small: bool, kernels: str
) -> None:
    import tempfile

    import mmattn.utils.command  # noqa: F401
    import numpy as np
    from mmengine.config import Config
    from mmengine.hooks import Hook
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    from mmattn.engine import choose_kernels, enable_amp

    import mmseg.models.decode_heads.cc_head as cc_head

    if cc_head.CrissCrossAttention is None:
        cc_head.CrissCrossAttention = criss_cross_class()
    cfg = Config.fromfile(ROOT / path)
    cfg.model.pop('pretrained', None)
    cfg.model.backbone.init_cfg = None
    if small and 'depth' in cfg.model.backbone and cfg.model.backbone.depth == 50:
        cfg.model.backbone.base_channels = 8
        cfg.model.backbone.stem_channels = 8
        cfg.model.decode_head.in_channels, cfg.model.decode_head.channels = 256, 16
        cfg.model.auxiliary_head.in_channels, cfg.model.auxiliary_head.channels = 128, 16
    cfg.model.data_preprocessor.size = size  # otherwise smaller images are padded to the config's
    classes = cfg.model.decode_head.num_classes
    rng = np.random.default_rng(0)

    class Drawn(torch.utils.data.Dataset):
        metainfo = dict(classes=tuple(map(str, range(classes))), palette=[[i, i, i] for i in range(classes)])

        def __len__(self):
            return 64

        def __getitem__(self, i):
            labels = np.kron(rng.integers(0, classes, (size[0] // 16 + 1, size[1] // 16 + 1)), np.ones((16, 16), int))[
                : size[0], : size[1]
            ]
            image = (labels * (255 // classes))[None].repeat(3, 0) + rng.normal(0, 10, (3, *size))
            sample = SegDataSample(
                gt_sem_seg=PixelData(data=torch.from_numpy(labels)[None].long()),
                metainfo=dict(img_shape=size, ori_shape=size, pad_shape=size, scale_factor=(1.0, 1.0), flip=False),
            )
            return dict(inputs=torch.from_numpy(image.clip(0, 255).astype(np.uint8)), data_samples=sample)

    if amp:
        enable_amp(cfg.optim_wrapper)
        if not GPU:
            cfg.optim_wrapper.dtype = 'bfloat16'
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=iterations, val_interval=10**9)
    cfg.default_hooks = dict(
        timer=dict(type='IterTimerHook'),
        logger=dict(type='LoggerHook', interval=10**6, log_metric_by_epoch=False),
        param_scheduler=dict(type='ParamSchedulerHook'),
        checkpoint=None,
        sampler_seed=None,
    )
    cfg.work_dir, cfg.randomness, cfg.experiment_name = (
        tempfile.mkdtemp(),
        dict(seed=0),
        f'{title.replace(" ", "_")}_{amp}_{kernels}_{time.time_ns()}',
    )
    if not GPU:
        from mmattn.engine import prepare_for_cpu

        prepare_for_cpu(cfg)
    losses, times = [], []

    class Watch(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            if GPU:
                torch.cuda.synchronize()
            self.start = time.perf_counter()

        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            if GPU:
                torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - self.start))
            losses.append(float(outputs['loss']))

    runner = _runner(cfg, Drawn(), batch)
    runner.register_hook(Watch(), priority='LOWEST')
    choose_kernels()
    if GPU:
        torch.cuda.reset_peak_memory_stats()
    start = time.monotonic()
    with _backend(kernels):
        runner.train()
    later = sorted(times[len(times) // 3 :])
    record(
        'train',
        title=title,
        amp=amp,
        kernels=kernels,
        size=size,
        batch=batch,
        iterations=len(times),
        ms=round(statistics.median(later), 2),
        first_ms=round(times[0], 1),
        losses=[round(x, 3) for x in losses[:: max(1, len(losses) // 6)]],
        finite=all(x == x and abs(x) < 1e9 for x in losses),
        peak_mib=round(torch.cuda.max_memory_allocated() / 2**20) if GPU else None,
        took=round(time.monotonic() - start, 1),
    )


@contextlib.contextmanager
def _backend(kernels: str):
    from mmattn.ops import backends

    with backends.backend('composition' if kernels == 'formulas' else kernels), formulas(kernels):
        yield


def _runner(cfg, dataset, batch):
    from mmengine.dataset import InfiniteSampler, pseudo_collate
    from mmengine.runner import Runner

    data = torch.utils.data.DataLoader(
        dataset,
        batch_size=batch,
        num_workers=6 if GPU else 0,
        sampler=InfiniteSampler(dataset, shuffle=False),
        collate_fn=pseudo_collate,
    )
    return Runner(
        model=cfg.model,
        work_dir=cfg.work_dir,
        train_dataloader=data,
        train_cfg=cfg.train_cfg,
        optim_wrapper=cfg.optim_wrapper,
        default_hooks={k: v for k, v in cfg.default_hooks.items()},
        default_scope='mmseg',
        env_cfg=cfg.get('env_cfg') or {},
        log_level='WARNING',
        randomness=cfg.randomness,
        experiment_name=cfg.experiment_name,
    )


PARTS = {
    'env': env,
    'edge': edge,
    'compare': compare,
    'layers': layers_,
    'ops': ops_,
    'shapes': shapes,
    'tune': tune,
    'time': time_,
    'capture': capture,
    'flex': flex,
    'train': train,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('part', choices=PARTS)
    parser.add_argument('--small', action='store_true')
    args = parser.parse_args()
    start = time.monotonic()
    with guarded(args.part, what='part'):
        PARTS[args.part](args.small)
    record(args.part, what='part', done=True, took=round(time.monotonic() - start, 1))


if __name__ == '__main__':
    main()
