"""The page of `play` in a browser: several readers, pieces that come pass by pass, colours, messages."""

import dataclasses
import json

import pytest

import xlnet_jax
from tests.chromium import browsing, needs_chromium
from tests.xlnet_jax.inference.test_records_generate import KNOWN, NETWORKS
from tests.xlnet_jax.random_models import HEADS, SMALL, random_model

pytestmark = needs_chromium
SCRIPT = "<img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsing(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def page(browser, server):
    page = browser.open(server.address)
    page.wait("document.querySelectorAll('nav button').length == 3")
    return page


def submit(page, kind, **values):
    """Fill in a form and send it."""
    page.run(f"document.querySelector('nav [data-kind={kind}]').click()")
    for name, value in values.items():
        page.run(f"document.querySelector('#{kind} [name={name}]').value = {json.dumps(value)}")
    page.run(f"document.querySelector('#{kind} form').requestSubmit()")


def wait_for(page, kind, what):
    return page.wait(f"document.querySelector('#{kind} {what}')?.checkVisibility()")


def text_of(page, kind, what):
    return page.run(f"document.querySelector('#{kind} {what}').textContent")


def pieces_of(page):
    script = "[...document.querySelectorAll('#fill .drawn')].map(x => [x.firstChild.data, x.title, x.style.cssText])"
    return page.run(script)


def test_two_readers_see_the_pieces_of_their_texts_pass_by_pass(browser, server, page, model):
    other = browser.open(server.address)
    other.wait("document.querySelectorAll('nav button').length == 3")
    settings = {"gap_pieces": "4", "order": "random", "seed": "3"}
    texts = {page: "It ___ a truth.", other: "She was ___ and ___."}
    for one, text in texts.items():
        # Note how many pieces are shown whenever that changes.
        one.run("""window.counts = []; new MutationObserver(() => {
            const count = document.querySelectorAll('#fill .drawn').length;
            if (counts.at(-1) !== count) counts.push(count);
        }).observe(document.querySelector('#fill .text'), {childList: true})""")
        submit(one, "fill", text=text, **settings)
    for one, text in texts.items():
        wait_for(one, "fill", "dl dd")
        gaps = text.count("___")
        (drawn,) = xlnet_jax.generate(model, text, gap_pieces=[4], order="random", seed=3)
        shown = one.run("""[...document.querySelectorAll('#fill .text')].map(x => {
            const copy = x.cloneNode(true);
            for (const small of copy.querySelectorAll('small')) small.remove();
            return copy.textContent;
        })[0]""")
        assert shown.replace(" ", "") == drawn.text.replace(" ", "")
        assert one.run("counts") == list(range(4 * gaps + 1))[-len(one.run("counts")) :]
        assert one.run("counts.length") >= 4 * gaps
        for (_, title, _), piece, number in zip(pieces_of(one), drawn.pieces, drawn.passes_P, strict=True):
            assert title.startswith(f"pass {number + 1}: {piece}, ")
            assert title.endswith("%")
    assert page.run("document.querySelector('#replay').value") == "3"
    page.run(
        "const replay = document.querySelector('#replay'); replay.value = 1; replay.dispatchEvent(new Event('input'))"
    )
    assert page.run("document.querySelectorAll('#fill .drawn:not(.later)').length") == 2


def test_a_fill_can_be_stopped(page, server):
    submit(page, "fill", text="It is", max_new_tokens="512")
    page.wait("document.querySelectorAll('#fill .drawn').length > 1")
    page.run("document.querySelector('[data-stop]').click()")
    page.wait("document.querySelector('[data-stop]').disabled")
    assert not page.run("document.querySelector('#fill .message').checkVisibility()")
    assert 0 < page.run("document.querySelectorAll('#fill .drawn').length") < 512


def test_scores_colour_the_pieces_by_their_surprise(page, model):
    text = "It is a truth, and it was not."
    submit(page, "score", text=text)
    wait_for(page, "score", "dl dd")
    (score,) = xlnet_jax.score_texts(model, [text])
    chips = page.run("""[...document.querySelectorAll('#score .scored')].map(
        x => [x.textContent, Number(x.style.getPropertyValue('--share')), getComputedStyle(x).backgroundColor])""")
    assert [piece for piece, _, _ in chips] == [piece.replace("▁", "") or "␣" for piece in score.pieces]
    for (_, share, _), log_prob in zip(chips, score.log_probs_P, strict=True):
        assert share == pytest.approx(min(1, -log_prob / 9), abs=1e-4)
    assert len({colour for _, share, colour in chips}) >= len({round(share, 2) for _, share, _ in chips}) > 1
    facts = text_of(page, "score", "dl")
    assert f"{-score.log_likelihood / len(score.pieces):.3f}" in facts
    assert "bits per character" in facts


def test_texts_are_compared(page, model):
    first, second = "It is a truth", "She was"
    submit(page, "embed", first=first, second=second)
    wait_for(page, "embed", "dl dd")
    a, b = xlnet_jax.embed_texts(model, [first, second], normalize=True)
    assert f"{a @ b:.4f}" in text_of(page, "embed", "dl")


def test_a_wrong_input_is_a_message_and_nothing_is_read_as_html(page):
    submit(page, "fill", text=f"It ___ {SCRIPT} ___", gap_pieces="1 2 3")
    wait_for(page, "fill", ".message")
    message = text_of(page, "fill", ".message")
    assert message.startswith("pieces per gap has 3 numbers")
    assert SCRIPT in message
    submit(page, "score", text=SCRIPT)
    wait_for(page, "score", "dl dd")
    submit(page, "fill", text=f"{SCRIPT} ___", gap_pieces="1")
    wait_for(page, "fill", "dl dd")
    assert SCRIPT in text_of(page, "fill", ".text")
    assert "'\\''" not in page.run("document.querySelector('#curl').textContent")
    assert page.run("document.images.length") == 0
    assert page.run("window.hacked") is None


def test_the_page_asks_no_other_host(page, server):
    submit(page, "score", text="It is")
    wait_for(page, "score", "dl dd")
    names = page.run("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert {name.rpartition("/")[0] for name in names} <= {server.address, "data:,"}


def test_fields_of_records_have_boxes(browser, serve):
    server = serve(NETWORKS["plm"])
    page = browser.open(server.address)
    page.wait("document.querySelectorAll('nav button').length == 3")
    labels = page.run("[...document.querySelectorAll('#fill .fields label')].map(x => x.firstChild.data)")
    assert labels == ["v", "cdr3", "items"]
    submit(page, "fill", field0="TRBV1", field1="CA___F", field2="")
    wait_for(page, "fill", "dl dd")
    assert page.run("[...document.querySelectorAll('#fill .text .field')].map(x => x.textContent)") == labels
    whole = text_of(page, "fill", ".text")
    assert "TRBV1" in whole
    drawn = pieces_of(page)
    assert {piece for piece, _, _ in drawn[:1]} <= KNOWN[1]
    assert {piece for piece, _, _ in drawn[1:]} <= KNOWN[2]
    submit(page, "score", field0="TRBV1", field1="CASSF", field2="3 7")
    wait_for(page, "score", "dl dd")
    facts = page.run("[...document.querySelectorAll('#score dt')].map(x => x.textContent)")
    assert facts[-3:] == labels
    submit(page, "fill", field0="TRBV1", field1="CA5F", field2="")
    wait_for(page, "fill", ".message")
    assert "cdr3" in text_of(page, "fill", ".message")


def test_a_form_predicts(browser, serve, tokenizer):
    model = random_model(dataclasses.replace(SMALL, vocab_size=800), HEADS["classification"], tokenizer)
    server = serve(model)
    page = browser.open(server.address)
    page.wait("document.querySelectorAll('nav button').length == 2")
    submit(page, "predict", text="It is a truth")
    wait_for(page, "predict", ".answer")
    (prediction,) = server.service.model.predict(["It is a truth"])
    assert text_of(page, "predict", ".answer") == prediction.value
    bars = page.run("[...document.querySelectorAll('#predict .bars meter')].map(x => x.value)")
    assert bars == pytest.approx(sorted(prediction.probabilities.values(), reverse=True), abs=1e-5)
    submit(page, "predict", text="")
    wait_for(page, "predict", ".answer, #predict .message")
