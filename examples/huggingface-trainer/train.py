"""Train a tiny language model on Python source code with Hugging Face's Trainer.

Nothing here depends on danlu: the Trainer reports its progress by itself if it finds Kubeflow's
variables. The model is initialized randomly, and the text ships with Python.
"""

import argparse
import argparse as text_to_learn
import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

LENGTH = 64
LETTERS = 128


class Letters(torch.utils.data.Dataset):
    """Fixed-length pieces of a text, one number per character."""

    def __init__(self, text: str) -> None:
        known = text.encode("ascii", errors="ignore")
        count = len(known) // LENGTH
        self.pieces = torch.tensor(list(known[: count * LENGTH])).reshape(count, LENGTH)

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.pieces[index], "labels": self.pieces[index]}


def tiny_model() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=LETTERS,
            n_positions=LENGTH,
            n_embd=64,
            n_layer=2,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--steps", type=int, default=1000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    trainer = Trainer(
        model=tiny_model(),
        args=TrainingArguments(
            output_dir="out",
            max_steps=given.steps,
            learning_rate=given.lr,
            per_device_train_batch_size=16,
            logging_steps=20,
            save_strategy="no",
            disable_tqdm=True,
            seed=7,
        ),
        train_dataset=Letters(Path(text_to_learn.__file__).read_text()),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"result: loss {float(losses[0]):.3f} -> {float(losses[-1]):.3f}", flush=True)
    return 0 if float(losses[-1]) < float(losses[0]) else 1


if __name__ == "__main__":
    sys.exit(main())
