"""Operations by themselves, and what feeds a training step: sections, and a checklist of the articles' advice."""
