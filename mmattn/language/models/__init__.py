"""What models of sentences share: Transformer stacks with decoding state, generation, beam search, losses."""
