"""Rows of tables, and agents."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from . import model

ROWS = (64, 512)
MIXED = ("x_cat=i64[B,5]=1", "x_num=f32[B,8]", "y=f32[B,1]")


@model("tab-transformer-pytorch", "tab-transformer-pytorch", *MIXED, loss="mse", batches=ROWS)
def tab_transformer():
    from tab_transformer_pytorch import TabTransformer

    return TabTransformer(categories=(10, 5, 6, 5, 8), num_continuous=8, dim=32, dim_out=1, depth=3, heads=4, attn_dropout=0.1, ff_dropout=0.1)


@model("ft-transformer", "tab-transformer-pytorch", *MIXED, loss="mse", batches=ROWS)
def ft_transformer():
    from tab_transformer_pytorch import FTTransformer

    return FTTransformer(categories=(10, 5, 6, 5, 8), num_continuous=8, dim=32, dim_out=1, depth=3, heads=4, attn_dropout=0.1, ff_dropout=0.1)


@model("pytorch-tabnet", "pytorch-tabnet", "x=f32[B,16]", "y=i64[B]", loss=lambda m, x, y: (lambda out: F.cross_entropy(out[0], y) - 1e-3 * out[1])(m(x)), batches=ROWS)
def tabnet():
    from pytorch_tabnet.tab_network import TabNet

    return with_buffers(TabNet(16, 3, n_d=8, n_a=8, n_steps=3, virtual_batch_size=32, group_attention_matrix=torch.eye(16)))


def with_buffers(model):
    """TabNet keeps its matrix of groups where `.to(device)` does not find it."""
    for module in model.modules():
        matrix = vars(module).pop("group_attention_matrix", None)
        if matrix is not None:
            module.register_buffer("group_attention_matrix", matrix)
    return model


@model("pytorch-tabnet-entmax", "pytorch-tabnet", "x=f32[B,16]", "y=i64[B]", loss=lambda m, x, y: F.cross_entropy(m(x)[0], y), batches=ROWS)
def tabnet_entmax():
    from pytorch_tabnet.tab_network import TabNetNoEmbeddings

    return with_buffers(TabNetNoEmbeddings(16, 3, n_steps=2, mask_type="entmax", virtual_batch_size=1 << 30, group_attention_matrix=torch.eye(16)))


def _rtdl(cls: str, batch: tuple[str, ...], **options) -> None:
    def build():
        import rtdl_revisiting_models as rtdl

        return getattr(rtdl, cls)(**options)

    build.__module__ = __name__
    model(f"rtdl-{cls.lower()}", "rtdl-revisiting-models", *batch, loss="mse", batches=ROWS)(build)


_rtdl("MLP", ("x=f32[B,16]", "y=f32[B,1]"), d_in=16, d_out=1, n_blocks=3, d_block=128, dropout=0.1)
_rtdl("ResNet", ("x=f32[B,16]", "y=f32[B,1]"), d_in=16, d_out=1, n_blocks=3, d_block=64, d_hidden=None, d_hidden_multiplier=2.0, dropout1=0.1, dropout2=0.1)
_rtdl("FTTransformer", ("x_cont=f32[B,8]", "x_cat=i64[B,3]", "y=f32[B,1]"), n_cont_features=8, cat_cardinalities=[4, 5, 6], d_out=1, n_blocks=2, d_block=64, attention_n_heads=4, attention_dropout=0.1, ffn_d_hidden=None, ffn_d_hidden_multiplier=4 / 3, ffn_dropout=0.1, residual_dropout=0.0)


def _policy(name: str, observation: str, discrete: bool, loss) -> None:
    def build():
        import numpy
        from gymnasium import spaces
        from stable_baselines3.common.policies import ActorCriticCnnPolicy, ActorCriticPolicy

        action = spaces.Discrete(4) if discrete else spaces.Box(-1, 1, (3,))
        if name == "cnn":
            return ActorCriticCnnPolicy(spaces.Box(0, 255, (4, 84, 84), numpy.uint8), action, lambda _: 1e-4, normalize_images=False)
        return ActorCriticPolicy(spaces.Box(-1, 1, (24,)), action, lambda _: 1e-4, net_arch=[64, 64])

    build.__module__ = __name__
    kind = "i64[B]" if discrete else "f32[B,3]"
    model(f"stable-baselines3-{name}", "stable-baselines3", f"x={observation}", f"action={kind}", "advantage=f32[B]", "before=f32[B]", loss=loss, batches=(32, 128), on_gpu=name == "cnn")(build)


def ppo(model, x, action, advantage, before):
    """Proximal policy optimization's clipped loss with a value loss and an entropy bonus."""
    value, log_probability, entropy = model.evaluate_actions(x, action)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = torch.exp(log_probability - before)
    policy = -torch.min(advantage * ratio, advantage * torch.clamp(ratio, 0.8, 1.2)).mean()
    return policy + 0.5 * F.mse_loss(before, value.flatten()) - 0.01 * entropy.mean()


_policy("mlp", "f32[B,24]", False, ppo)
_policy("cnn", "f32[B,4,84,84]", True, ppo)


@model("dqn-dueling", "torch", "x=f32[B,8]", "action=i64[B]", "reward=f32[B]", "following=f32[B,8]", loss=lambda m, x, action, reward, following: dqn(m, x, action, reward, following), batches=ROWS)
def dueling():
    class Dueling(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Linear(8, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU())
            self.value, self.advantage = torch.nn.Linear(128, 1), torch.nn.Linear(128, 4)

        def forward(self, x):
            x = self.body(x)
            advantage = self.advantage(x)
            return self.value(x) + advantage - advantage.mean(1, keepdim=True)

    return Dueling()


def dqn(model, x, action, reward, following):
    with torch.no_grad():
        target = reward + 0.99 * model(following).max(1).values
    return F.smooth_l1_loss(model(x).gather(1, action[:, None]).squeeze(1), target)
