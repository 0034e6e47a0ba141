"""The pieces that every XLNet vocabulary begins with; ids 0 to 8 mean the same in all of them."""

SPECIAL_PIECES = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
UNK, BOS, EOS, CLS, SEP, PAD, MASK, EOD, EOP = range(len(SPECIAL_PIECES))
SPACE = "\u2581"  # SentencePiece's ▁, a space before the piece
