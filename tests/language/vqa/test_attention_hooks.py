"""Hooks of attention: entropies equal to their definition, over all questions; pictures of the first questions."""

import math
import shutil
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.runner import Runner
from mmengine.visualization import Visualizer
from torch.utils.data import DataLoader

from mmattn.language.regions.image_inputs import picture_paths
from mmattn.language.text.batching import pad_collate
from mmattn.language.vqa import attention_hooks
from mmattn.language.vqa.attention_pictures import draw_answer_attention, question_attention
from mmattn.language.vqa.datasets import VQADataset
from mmattn.language.vqa.heads import ConcatHead
from mmattn.language.vqa.questions import Question, write_questions
from mmattn.registry import HOOKS

from ...tiny_data import FEATURES, QUESTION_WORDS
from ..files import edit_store
from ..world import ANSWERS, BAN, CONCAT, MCAN, PICTURES, QUESTIONS, UNITARY, random_model


@pytest.fixture(scope='module')
def folder(world, tmp_path_factory):
    """The world, with questions that have an answer each."""
    folder = tmp_path_factory.mktemp('hooks')
    for name in ('regions', 'pictures', 'photos'):
        (folder / name).symlink_to(world.folder / name)
    questions = [Question(90 + n, *pair, [ANSWERS[n]], ANSWERS[n], 'what', 'other') for n, pair in enumerate(QUESTIONS)]
    write_questions(folder / 'q.json', questions)
    return folder


def collate_lists(samples):
    inputs = {name: [each['inputs'][name] for each in samples] for name in samples[0]['inputs']}
    return dict(inputs=inputs, data_samples=[each['data_samples'] for each in samples])


def validate(folder, config, hook, tmp_path, batch_size=2, padded=False):
    """Validate twice with a hook, without a Runner; return its stand-in and the data set."""
    place = dict(images='pictures') if config is PICTURES else dict(regions='regions')
    data = VQADataset('q.json', **place, data_root=str(folder), min_answers=1, max_words=7, test_mode=True)
    counts = dict(vocab_size=len(data.vocabulary), num_answers=len(data.answers))
    logged = {}
    runner = SimpleNamespace(
        model=random_model(config | counts),
        message_hub=SimpleNamespace(update_scalar=lambda name, value: logged.setdefault(name, []).append(value)),
        visualizer=Visualizer(vis_backends=[dict(type='LocalVisBackend')], save_dir=str(tmp_path / 'shown')),
        val_dataloader=SimpleNamespace(dataset=data),
        iter=40,
        logged=logged,
    )
    hook.before_run(runner)
    for _ in range(2):
        hook.before_val_epoch(runner)
        for number, batch in enumerate(
            DataLoader(data, batch_size, collate_fn=pad_collate if padded else collate_lists)
        ):
            hook.after_val_iter(runner, number, batch, batch['data_samples'])
        hook.after_val_epoch(runner, {})
        runner.iter += 10
    return runner, data


@pytest.mark.parametrize('config', [BAN, UNITARY, PICTURES])
def test_entropies_of_single_questions(folder, config, tmp_path, monkeypatch):
    hook = HOOKS.build(dict(type='mmattn.GlimpseEntropyHook'))
    runner, data = validate(folder, config, hook, tmp_path)
    maps = [question_attention(runner.model, sample['inputs'])[1] for sample in data]
    glimpses = len(maps[0])
    assert [*runner.logged] == [f'val/entropy/{g}' for g in range(1, glimpses + 1)]
    for g in range(glimpses):
        entropies = [-sum(a * math.log(a) for a in each[g].double().flatten().tolist() if a > 0) for each in maps]
        expected = sum(entropies) / len(QUESTIONS)
        assert runner.logged[f'val/entropy/{g + 1}'] == pytest.approx([expected] * 2, rel=1e-5)
    assert glimpses == (1 if config is UNITARY else 2)
    monkeypatch.setattr(
        attention_hooks, 'all_gather_object', lambda mine: [([], 0), mine]
    )  # a process without questions
    assert validate(folder, config, hook, tmp_path)[0].logged == runner.logged


@pytest.mark.parametrize('padded', [False, True])
def test_pictures_of_the_first_questions(folder, tmp_path, padded):
    """In every second validation; those of the whole data set in batches of two, without the padding of a batch."""
    hook = HOOKS.build(
        dict(type='mmattn.BilinearMapHook', num_questions=3, interval=2, pictures=folder / 'photos', top_k=2)
    )
    runner, data = validate(folder, BAN, hook, tmp_path, padded=padded)
    found = {path.name: cv2.imread(str(path))[..., ::-1] for path in (tmp_path / 'shown').rglob('*.png')}
    assert sorted(found) == [f'attention_{90 + n}_40.png' for n in range(3)]
    for n in range(3):
        image_id, text = QUESTIONS[n]
        picture = cv2.imread(str(picture_paths(folder / 'photos')[image_id]))[..., ::-1]
        expected = draw_answer_attention(
            runner.model, data[n]['inputs'], text, data.tokenizer, data.answers, picture, top_k=2
        )
        np.testing.assert_array_equal(found[f'attention_{90 + n}_40.png'], expected)


@pytest.mark.parametrize('padded', [False, True])
def test_questions_about_an_image_without_regions_are_skipped(folder, tmp_path, padded, logged):
    messages = logged(attention_hooks)
    shutil.copytree(folder, tmp_path / 'data')
    edit_store(tmp_path / 'data/regions', 'first', lambda first: first.__setitem__(1, 0))  # image 7
    hook = HOOKS.build(dict(type='mmattn.BilinearMapHook', num_questions=3, interval=2))
    validate(tmp_path / 'data', BAN, hook, tmp_path, padded=padded)
    assert [path.name for path in tmp_path.rglob('attention_*.png')] == ['attention_92_40.png']
    assert [message.split(':')[0] for message in messages] == ['question 90', 'question 91']


def test_both_hooks_in_a_validation_of_mmengine(small, tmp_path):
    """The log has the entropies, and the visualizer's folder the pictures."""
    cfg = small('ban/ban-2_small_1xb64-26e_coco-qa.py')
    cfg.model.update(vocab_size=4 + len(QUESTION_WORDS), num_answers=2, num_features=FEATURES)
    cfg.model.question_encoder.update(word_dim=6, embed_dim=8)
    cfg.custom_hooks = [dict(type='mmattn.GlimpseEntropyHook'), dict(type='mmattn.BilinearMapHook', num_questions=1)]
    cfg.optim_wrapper.optimizer.lr = 1e-30  # the model stays as it is
    cfg.visualizer.name = tmp_path.name  # mmengine would take one of this name that a fixture of another test has made
    runner = Runner.from_cfg(cfg)
    runner.train()
    [log] = tmp_path.rglob('*/scalars.json')
    maps = [question_attention(runner.model.eval(), sample['inputs'])[1] for sample in runner.val_dataloader.dataset]
    mean = sum(torch.special.entr(each[0]).sum().item() for each in maps) / len(maps)
    assert f'"entropy/1": {mean:.3f}'[:-1] in log.read_text(encoding='utf-8')
    assert len([*tmp_path.rglob('attention_*.png')]) == 1


class OwnHead(ConcatHead):
    has_weights = True


@pytest.mark.parametrize('name', ['GlimpseEntropyHook', 'BilinearMapHook'])
def test_models_without_maps(folder, tmp_path, name):
    hook = HOOKS.build(dict(type=f'mmattn.{name}'))
    for config, words in ((MCAN, 'MCAN'), (CONCAT, 'ConcatHead')):
        with pytest.raises(ValueError, match=words):
            hook.before_run(SimpleNamespace(model=random_model(config)))
    with pytest.raises(ValueError, match='OwnHead'):  # which does not say that it has none
        validate(folder, CONCAT | dict(head=dict(type=OwnHead)), hook, tmp_path)
