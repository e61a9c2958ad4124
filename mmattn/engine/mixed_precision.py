"""Mixed precision for a config that trains in float32."""

from mmattn.utils.component_type import type_name

AMP = {  # by name: the mixed-precision form of an optimizer wrapper
    'OptimWrapper': 'AmpOptimWrapper',
    'AmpOptimWrapper': 'AmpOptimWrapper',
    'TokenOptimWrapper': 'mmattn.AmpTokenOptimWrapper',
    'AmpTokenOptimWrapper': 'mmattn.AmpTokenOptimWrapper',
}


def enable_amp(wrapper: dict) -> None:
    """Change the config of an optimizer wrapper to mixed precision.

    Args:
        wrapper (dict): ``optim_wrapper`` of a config, of type ``OptimWrapper`` or ``mmattn.TokenOptimWrapper``, or of
            their AMP forms. Another type raises a ValueError. The loss is scaled dynamically unless ``loss_scale`` is
            set.
    """
    name = type_name(wrapper, 'OptimWrapper')
    if name not in AMP:
        raise ValueError(
            "mixed precision requires optim_wrapper.type='OptimWrapper' or 'mmattn.TokenOptimWrapper'; "
            f"got '{wrapper['type']}'"
        )
    wrapper['type'] = AMP[name]
    wrapper.setdefault('loss_scale', 'dynamic')
