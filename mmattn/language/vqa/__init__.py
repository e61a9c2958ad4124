"""Visual question answering."""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'answers': 'frequent_answers normalize_answer official_score',
        'bilinear_map_hook': 'BilinearMapHook',
        'datasets': 'VQADataset',
        'glimpse_entropy_hook': 'GlimpseEntropyHook',
        'heads': 'BANHead CoAttentionHead ConcatHead FusionHead ImageOnlyHead QuestionOnlyHead UnitaryHead',
        'image_encoder': 'ConvImageEncoder',
        'inferencer': 'VQAInferencer',
        'mcan': 'AttentionPooling GuidedEncoder MCAN',
        'question_encoder': 'EncodedQuestion QuestionGRU SkipThoughtEncoder',
        'questions': 'Question QuestionTokenizer read_questions write_questions',
        'vqa_accuracy': 'VQAAccuracy',
        'vqa_model': 'VQAModel',
        'word_vector_hook': 'WordVectorHook',
        'word_vectors': 'read_word_vectors',
    },
)
