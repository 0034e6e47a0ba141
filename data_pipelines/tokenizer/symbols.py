"""Special pieces: ids 0 to 8 of every XLNet vocabulary."""

SPECIAL_PIECES = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
UNK, BOS, EOS, CLS, SEP, PAD, MASK, EOD, EOP = range(len(SPECIAL_PIECES))
SPACE = "\u2581"  # SentencePiece's ▁, a space before the piece
