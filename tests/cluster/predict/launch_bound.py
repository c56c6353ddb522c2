"""Programs whose published steps are bound by launches: a token of Llama, and a policy for a robot.

- `tokens`: pytorch.org/blog/accelerating-generative-ai-2, a Llama 2 7B that makes a token after
  another, as github.com/meta-pytorch/gpt-fast does, without a fused kernel for attention.
- `steps`: ACT of github.com/huggingface/lerobot, as its pull request 4607 and issue 4612 train it:
  a ResNet-18 that looks at a picture, and Transformers, in DDP.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# --- a token of Llama 2 7B ---

WIDTH, HEADS, INNER, LAYERS, PLACES, WORDS = 4096, 32, 11008, 32, 256, 32000


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, values):
        wide = values.float()
        wide = wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + 1e-5)
        return wide.type_as(values) * self.weight


def rotated(values, angles):
    pairs = values.float().reshape(*values.shape[:-1], -1, 2)
    cosines, sines = angles[..., 0], angles[..., 1]
    first = pairs[..., 0] * cosines - pairs[..., 1] * sines
    second = pairs[..., 1] * cosines + pairs[..., 0] * sines
    return torch.stack([first, second], -1).flatten(3).type_as(values)


def attention(query, keys, values, mask):
    """torch's own attention where it may use no fused kernel."""
    scale = query.shape[-1] ** -0.25
    bias = torch.zeros_like(mask, dtype=query.dtype)
    bias.masked_fill_(mask.logical_not(), float("-inf"))
    scores = (query * scale) @ (keys * scale).transpose(-2, -1) + bias
    return scores.softmax(-1) @ values


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(Norm() for _ in range(2))
        self.inputs = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, INNER, bias=False)
        self.up = nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)
        self.register_buffer("keys", torch.zeros(1, HEADS, PLACES, WIDTH // HEADS))
        self.register_buffer("values", torch.zeros(1, HEADS, PLACES, WIDTH // HEADS))

    def forward(self, hidden, angles, mask, place):
        hidden = hidden + self.attend(self.norms[0](hidden), angles, mask, place)
        fed = self.norms[1](hidden)
        return hidden + self.down(F.silu(self.gate(fed)) * self.up(fed))

    def attend(self, hidden, angles, mask, place):
        parts = [
            part.view(1, 1, HEADS, -1) for part in self.inputs(hidden).split([WIDTH] * 3, dim=-1)
        ]
        query, key, value = rotated(parts[0], angles), rotated(parts[1], angles), parts[2]
        query, key, value = (one.transpose(1, 2) for one in (query, key, value))
        self.keys[:, :, place] = key
        self.values[:, :, place] = value
        keys = self.keys.repeat_interleave(1, dim=1)
        values = self.values.repeat_interleave(1, dim=1)
        attended = attention(query, keys, values, mask)
        return self.output(attended.transpose(1, 2).contiguous().view(1, 1, WIDTH))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        self.output = nn.Linear(WIDTH, WORDS, bias=False)
        self.register_buffer("mask", torch.ones(PLACES, PLACES, dtype=torch.bool))
        self.register_buffer("angles", torch.zeros(PLACES, WIDTH // HEADS // 2, 2))

    def forward(self, word, place):
        mask = self.mask[None, None, place]
        angles = self.angles[place].view(1, 1, 1, -1, 2)
        hidden = self.words(word)
        for layer in self.layers:
            hidden = layer(hidden, angles, mask, place)
        return self.output(self.norm(hidden))


def drawn(scores):
    """The next word, out of the 200 most probable ones."""
    scores = scores[0, -1] / 0.8
    most, _ = torch.topk(scores, 200)
    scores = torch.where(scores < most[-1], -float("inf"), scores)
    chances = F.softmax(scores, dim=-1)
    noise = torch.empty_like(chances).exponential_(1)
    return torch.argmax(chances / noise, dim=-1, keepdim=True).to(dtype=torch.int)


def tokens(rank, world_size, number):
    """Make so many words, one after another."""
    torch.set_default_dtype(torch.bfloat16)
    model = Llama()
    word = torch.zeros(1, 1, dtype=torch.int)
    place = torch.zeros(1, dtype=torch.int)
    with torch.no_grad():
        for _ in range(number):
            word = drawn(model(word.view(1, 1), place)).clone()
            place += 1


# --- a step of ACT ---

STATE, LATENT, CHUNK, MODEL, FEED = 14, 32, 100, 512, 3200


class FrozenNorm(nn.Module):
    """A batch norm that does not learn, as torchvision computes it."""

    def __init__(self, features):
        super().__init__()
        for name in ("weight", "bias", "mean", "variance"):
            self.register_buffer(name, torch.ones(features))

    def forward(self, values):
        buffers = (self.weight, self.bias, self.mean, self.variance)
        weight, bias, mean, variance = (one.reshape(1, -1, 1, 1) for one in buffers)
        scale = weight * (variance + 1e-5).rsqrt()
        return values * scale + (bias - mean * scale)


def convolved(before, after, size, stride):
    convolution = nn.Conv2d(before, after, size, stride, size // 2, bias=False)
    return nn.Sequential(convolution, FrozenNorm(after))


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.first = convolved(before, after, 3, stride)
        self.second = convolved(after, after, 3, 1)
        self.shortcut = nn.Identity()
        if before != after:
            self.shortcut = convolved(before, after, 1, stride)

    def forward(self, values):
        found = self.second(self.first(values).relu_())
        found += self.shortcut(values)
        return found.relu_()


def resnet():
    parts = [convolved(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for after in (64, 128, 256, 512):
        parts.append(Residual(before, after, 1 if before == after else 2))
        parts.append(Residual(after, after, 1))
        before = after
    return nn.Sequential(*parts)


class Attending(nn.Module):
    """A block of a Transformer that attends to itself and, as a decoder does, to what was seen."""

    def __init__(self, attentions):
        super().__init__()
        self.attentions = nn.ModuleList(
            nn.MultiheadAttention(MODEL, 8, dropout=0.1) for _ in range(attentions)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(MODEL) for _ in range(attentions + 1))
        self.dropouts = nn.ModuleList(nn.Dropout(0.1) for _ in range(attentions + 2))
        self.up, self.down = nn.Linear(MODEL, FEED), nn.Linear(FEED, MODEL)

    def forward(self, values, places, padded=None, seen=None, places_seen=None):
        query = values + places
        found, _ = self.attentions[0](query, query, values, key_padding_mask=padded)
        values = self.norms[0](values + self.dropouts[0](found))
        if seen is not None:
            found, _ = self.attentions[1](values + places, seen + places_seen, seen)
            values = self.norms[1](values + self.dropouts[1](found))
        fed = self.down(self.dropouts[-2](F.relu(self.up(values))))
        return self.norms[-1](values + self.dropouts[-1](fed))


def waves(image):
    """Sines and cosines for the places of a picture."""
    ones = torch.ones_like(image[0, :1])
    rates = 10000 ** (2 * (torch.arange(MODEL // 2, dtype=torch.float32) // 2) * 2 / MODEL)
    found = []
    for dim in (1, 2):
        places = ones.cumsum(dim, dtype=torch.float32)
        angles = (places / (places.amax(dim, keepdim=True) + 1e-6) * 6.28).unsqueeze(-1) / rates
        parts = (angles[..., 0::2].sin(), angles[..., 1::2].cos())
        found.append(torch.stack(parts, dim=-1).flatten(3))
    return torch.cat(found, dim=3).permute(0, 3, 1, 2)


class Act(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Embedding(1, MODEL)
        self.styles = nn.ModuleList(Attending(1) for _ in range(4))
        self.style_state, self.style_action = nn.Linear(STATE, MODEL), nn.Linear(STATE, MODEL)
        self.style = nn.Linear(MODEL, 2 * LATENT)
        self.register_buffer("style_places", torch.ones(1, CHUNK + 2, MODEL))
        self.backbone, self.image = resnet(), nn.Conv2d(MODEL, MODEL, 1)
        self.state, self.latent = nn.Linear(STATE, MODEL), nn.Linear(LATENT, MODEL)
        self.encoder = nn.ModuleList(Attending(1) for _ in range(4))
        self.decoder, self.norm = Attending(2), nn.LayerNorm(MODEL)
        self.places, self.queries = nn.Embedding(2, MODEL), nn.Embedding(CHUNK, MODEL)
        self.output = nn.Linear(MODEL, STATE)

    def forward(self, images, state, actions, padded):
        mean, log = self.style_of(state, actions, padded).split(LATENT, dim=1)
        style = mean + log.div(2).exp() * torch.randn_like(mean)
        image = self.backbone(images)
        places = waves(image)
        image = self.image(image)
        seen = [self.latent(style), self.state(state), *image.flatten(2).permute(2, 0, 1)]
        at = [*self.places.weight.unsqueeze(1), *places.flatten(2).permute(2, 0, 1)]
        hidden, at = torch.stack(seen), torch.stack(at)
        for block in self.encoder:
            hidden = block(hidden, at)
        asked = torch.zeros(CHUNK, len(images), MODEL)
        found = self.decoder(asked, self.queries.weight.unsqueeze(1), None, hidden, at)
        found = self.output(self.norm(found).transpose(0, 1))
        apart = F.l1_loss(actions, found, reduction="none") * ~padded.unsqueeze(-1)
        apart = apart.mean()
        apart.item()
        divergence = (-0.5 * (1 + log - mean.pow(2) - log.exp())).sum(-1).mean()
        divergence.item()
        return apart + 10 * divergence

    def style_of(self, state, actions, padded):
        batch = len(state)
        first = self.first.weight.unsqueeze(0).expand(batch, 1, MODEL).contiguous()
        parts = [first, self.style_state(state).unsqueeze(1), self.style_action(actions)]
        hidden = torch.cat(parts, dim=1).permute(1, 0, 2)
        padded = torch.cat([torch.full((batch, 2), False), padded], dim=1)
        for block in self.styles:
            hidden = block(hidden, self.style_places.permute(1, 0, 2), padded)
        return self.style(hidden[0])


def steps(rank, world_size):
    """Two steps of eight pictures on each rank."""
    policy = Act()
    parameters = list(policy.parameters())
    model = DistributedDataParallel(policy)
    optimizer = torch.optim.AdamW(parameters, 1e-5)
    for _ in range(2):
        images, state = torch.randn(8, 3, 480, 640), torch.randn(8, STATE)
        actions, padded = torch.randn(8, CHUNK, STATE), torch.zeros(8, CHUNK, dtype=torch.bool)
        loss = model(images, state, actions, padded)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, 10.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item(), norm.item()
