"""The part env: versions, what mmattn finds, the card, and which kernels of SDPA it can use."""

import itertools

import torch
from findings import GPU, guarded, milliseconds, record, run_groups
from torch.backends import cuda

from mmattn.ops import library, triton
from mmattn.utils.collect_env import collect_env


def run_env(seconds: float) -> None:
    run_groups('env', _env, ['environment'], seconds)


def _env(_: str) -> None:
    record('env', what='collect_env', **collect_env())
    kernels = {name: library.has_kernel(name, 'cuda') for name in library.KERNELS}
    triton_missing = triton.unavailable_reason()
    record('env', what='library', reason=library.UNAVAILABLE_REASON, cuda=kernels, triton=triton_missing)
    for check in (_card, _sdpa) if GPU else ():
        with guarded('env', what=check.__name__):
            check()


def _card() -> None:
    properties = torch.cuda.get_device_properties(0)
    a, b = (torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16) for _ in range(2))
    x = torch.randn(2**29, device='cuda')
    y = torch.empty_like(x)
    record(
        'env',
        what='card',
        name=properties.name,
        sms=properties.multi_processor_count,
        shared_optin=getattr(properties, 'shared_memory_per_block_optin', None),
        cudnn=torch.backends.cudnn.version(),
        sdp_order=str(torch._C._get_sdp_priority_order()),  # noqa: SLF001
        tf32=(cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        bf16_tflops=round(2 * 8192**3 / milliseconds(lambda: a @ b) / 1e9),
        copy_gb_s=round(2 * x.nbytes / milliseconds(lambda: y.copy_(x)) / 1e6),
    )


def _sdpa() -> None:
    for dtype, channels, mask in itertools.product((torch.float32, torch.bfloat16), (64, 256), (None, False, True)):
        query = torch.randn(1, 1, 128, channels, device='cuda', dtype=dtype)
        table = None if mask is None else torch.randn(1, 1, 128, 128, device='cuda', dtype=dtype, requires_grad=mask)
        call = cuda.SDPAParams(query, query, query, table, 0.0, False, False)
        usable = {x: getattr(cuda, f'can_use_{x}_attention')(call) for x in ('cudnn', 'flash', 'efficient')}
        record(
            'env', what='sdpa', dtype=dtype, channels=channels, mask=mask is not None, mask_grad=bool(mask), **usable
        )
