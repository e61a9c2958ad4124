"""Interrupted inference: in the same process, between two batches; and what continues no other run."""


class Stop(ValueError):
    pass


def stop_once(inferencer_class, batches, monkeypatch):
    """Let the first inferencer of a class stop in the batch after ``batches``; return the batches of all."""
    forward, ran = inferencer_class.forward, []

    def limited(self, batch, **options):
        ran.append(batch.indices)
        if len(ran) == batches + 1:
            raise Stop('stopped')
        return forward(self, batch, **options)

    monkeypatch.setattr(inferencer_class, 'forward', limited)
    return ran


def in_double(inferencer, monkeypatch):
    """Let model and inputs be float64; stores and pictures have float32."""
    inferencer.model.double()
    collated = inferencer._collated

    def double(samples):
        return {name: x.double() if x.is_floating_point() else x for name, x in collated(samples).items()}

    monkeypatch.setattr(inferencer, '_collated', double)
    return inferencer
