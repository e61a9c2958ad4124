"""Importing mmattn changes no state of another package: compared in a fresh process, before and after all its modules.

What mmattn adds under its own name stays allowed: child registries of scope ``mmattn``, operators ``mmattn::``, and its
entries in the tables of mmengine's packages and file backends.
"""

import json

import pytest

# Imports every module of mmattn, and prints the other modules that this imports.
LIST_OTHERS = """
import json, pkgutil, sys
from importlib import import_module
from importlib.util import find_spec
import mmattn
import torch  # _C requires it

def import_everything():
    for module in pkgutil.walk_packages(mmattn.__path__, 'mmattn.'):
        if find_spec('triton') or not module.name.startswith('mmattn.ops.triton.'):
            import_module(module.name)

if __name__ == '__main__':
    import_everything()
    print(json.dumps([name for name in sys.modules if name.partition('.')[0] not in ('mmattn', '__main__')]))
"""

# Imports those modules alone, then mmattn. Prints the kinds of state that differ, and how.
COMPARE = (
    LIST_OTHERS.partition('if __name__')[0].replace('import mmattn\n', '')
    + """
import atexit, contextlib, logging, os, random, signal, threading, types, warnings

for name in {others!r}:
    with contextlib.suppress(BaseException):  # some are no files
        import_module(name)

import mmengine.registry, numpy, torch
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.fileio.backends.registry_utils import backends
from mmengine.registry import DefaultScope, Registry
from mmengine.utils import ManagerMixin

forks = []
register_at_fork = os.register_at_fork

def count_forks(**functions):
    forks.append(sorted(functions))
    register_at_fork(**functions)

os.register_at_fork = count_forks
WATCHED = 'torch', 'torchvision', 'numpy', 'mmengine', 'mmcv', 'mmseg', 'mmdet', 'logging', 'warnings', 'pickle', 'json'
CALLABLE = type, types.FunctionType, types.BuiltinFunctionType, staticmethod, classmethod, property

def callables():
    # every function and class, and the methods of every class: what could be replaced
    for module_name, module in list(sys.modules.items()):
        if module_name.partition('.')[0] not in WATCHED or not isinstance(module, types.ModuleType):
            continue
        for name, value in list(vars(module).items()):
            if issubclass(type(value), CALLABLE):  # isinstance would ask proxies, which warn
                yield f'{{module_name}}.{{name}}', value
            if issubclass(type(value), type) and value.__module__ == module_name:
                for method, function in list(vars(value).items()):
                    if isinstance(function, CALLABLE):
                        yield f'{{module_name}}.{{name}}.{{method}}', function
            if type(value) is types.FunctionType and value.__defaults__:
                yield f'{{module_name}}.{{name}}.__defaults__', value.__defaults__

def registries():
    for root in vars(mmengine.registry).values():
        if isinstance(root, Registry):
            for registry in (root, *(child for scope, child in root.children.items() if scope != 'mmattn')):
                at = f'{{registry.scope}}::{{registry.name}}'
                yield at, dict(names=sorted(registry.module_dict), build_func=str(registry.build_func))

def loggers():
    known = [*logging.Logger.manager.loggerDict.values(), logging.getLogger()]
    for logger in known:
        if isinstance(logger, logging.Logger) and not logger.name.startswith('mmattn'):
            kept = logger.level, logger.disabled, logger.propagate, type(logger), logger.handlers, logger.filters
            yield logger.name, str(kept)

def flags(module):
    return {{name: value for name in dir(module) if isinstance(value := getattr(module, name), bool | int | str)}}

def state():
    return dict(
        callables=dict(callables()),
        registries=dict(registries()),
        mmengine=dict(
            default_scope=list(DefaultScope._instance_dict),
            instances={{cls.__name__: list(cls._instance_dict) for cls in ManagerMixin.__subclasses__()}},
            packages={{name: package for name, package in MODULE2PACKAGE.items() if name != 'mmattn'}},
            file_backends=sorted(name for name in backends if not name.startswith('mmattn.')),
        ),
        logging=dict(loggers(), disabled=logging.root.manager.disable, raises=logging.raiseExceptions,
                     logger_class=logging.getLoggerClass(), record_factory=logging.getLogRecordFactory()),
        torch=dict(
            safe_globals=sorted(map(str, torch.serialization.get_safe_globals())),
            default_dtype=torch.get_default_dtype(),
            default_device=str(torch.get_default_device()),
            threads=(torch.get_num_threads(), torch.get_num_interop_threads()),
            deterministic=(torch.are_deterministic_algorithms_enabled(), torch.get_deterministic_debug_mode()),
            precision=torch.get_float32_matmul_precision(),
            grad=torch.is_grad_enabled(),
            autocast=(torch.is_autocast_enabled('cpu'), torch.is_autocast_enabled('cuda')),
            cudnn=flags(torch.backends.cudnn),
            matmul=(torch.backends.cuda.matmul.allow_tf32, torch.backends.mkldnn.is_available()),
            attention=(torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()),
        ),
        random=dict(python=hash(random.getstate()), numpy=str(numpy.random.get_state()),
                    torch=torch.get_rng_state().tolist()),
        warnings=dict(filters=list(map(str, warnings.filters)), shown_by=warnings.showwarning),
        at_fork=dict(calls=list(forks)),
        signals={{str(number): signal.getsignal(number) for number in signal.valid_signals()}},
        process=dict(environment=dict(os.environ), path=list(sys.path), finders=list(map(str, sys.meta_path)),
                     hooks=(sys.excepthook, sys.displayhook), threads=threading.active_count(),
                     at_exit=atexit._ncallbacks()),
    )

before = state()
before_modules = set(sys.modules)
import mmattn
import torch  # _C requires it
import_everything()
after = state()
changed = {{}}
for kind, values in before.items():
    for name, value in values.items():
        new = after[kind].get(name)
        if new is not value and (kind == 'callables' or new != value):
            changed.setdefault(kind, {{}})[name] = f'{{value}} -> {{new}}'[:400]
    added = after[kind].keys() - values.keys()
    if kind == 'callables':  # a module may have new names, as submodules are imported; a class may not
        added = {{name for name in added if name.rpartition('.')[0] in values}}
    if added:
        changed.setdefault(kind, {{}})['added'] = sorted(added)
print(json.dumps(dict(changed=changed, compared=len(before['callables']), late=[
    name for name in sys.modules.keys() - before_modules if not name.startswith('mmattn')])))
"""
)


@pytest.mark.slow
def test_importing_everything_changes_nothing_of_another_package(run_python):
    others = json.loads(run_python(LIST_OTHERS).splitlines()[-1])
    found = json.loads(run_python(COMPARE.format(others=others)).splitlines()[-1])
    assert found['changed'] == {}
    assert found['compared'] > 10_000  # functions, classes and methods
    assert not [name for name in found['late'] if name.startswith(('torch', 'mm'))]  # or they would not be compared
