"""Visual question answering.

Configs name the components, which load on first use. Imports ``language``'s ``text``, ``regions``, ``layers`` and
``models``, and no other task. Start with ``vqa_model.py``: an encoder of questions and images (``encoders.py``,
``mcan.py``) and a head (``heads.py``). ``datasets.py`` joins ``questions.py`` and ``answers.py``, and
``transforms.py`` makes its samples.
"""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'answers': 'VQAAccuracy frequent_answers normalize_answer official_score',
        'attention_hooks': 'BilinearMapHook GlimpseEntropyHook',
        'datasets': 'VQADataset',
        'encoders': 'ConvImageEncoder EncodedQuestion QuestionGRU SkipThoughtEncoder',
        'heads': 'BANHead CoAttentionHead ConcatHead FusionHead ImageOnlyHead QuestionOnlyHead UnitaryHead',
        'inferencer': 'VQAInferencer',
        'mcan': 'AttentionPooling GuidedEncoder MCAN',
        'questions': 'Question QuestionTokenizer read_questions write_questions',
        'transforms': 'AnswerTargets EncodeQuestion LoadPicture',
        'vqa_model': 'VQAModel',
        'word_vectors': 'WordVectorHook read_word_vectors',
    },
)
