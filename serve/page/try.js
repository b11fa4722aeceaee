'use strict';

// Uses the same API as programs: gets a model's name and inputs, then its predictions. Responses are inserted as text,
// never as markup.

const byId = id => document.getElementById(id);
const SIDE = 28;
let model = null;
let pending = null;

function show(id, visible) {
    byId(id).hidden = !visible;
}

// With an error the answer before it goes, and the field that it names is marked.
function showError(text) {
    byId('problem').textContent = (text || '').replace(/^row 0: /, ''); // there is one row
    show('notices', Boolean(text));
    for (const field of byId('fields').querySelectorAll('input')) {
        if (text && text.includes(`column ${field.name}: `)) field.setAttribute('aria-invalid', 'true');
        else field.removeAttribute('aria-invalid');
    }
    if (text) forget();
}

function cell(row, content) {
    const made = row.insertCell();
    made.append(content);
    return made;
}

// Tries are not part of a server's traffic: they count neither for drift nor in the log of requests.
async function ask(path, options) {
    const token = sessionStorage.getItem('token');
    const headers = {'Trainer-Try': '1', ...(token ? {Authorization: `Bearer ${token}`} : {})};
    const answer = await fetch(path, {...options, headers});
    show('token-form', answer.status === 401);
    const reply = await answer.json();
    if (!answer.ok) throw new Error(reply.error || `status ${answer.status}`);
    return reply;
}

// --- Output ---

const grouped = new Intl.NumberFormat('en', {maximumSignificantDigits: 6});
const number = value => (typeof value === 'number' ? grouped.format(value) : String(value));
const percent = share => `${(100 * share).toFixed(1)}%`;

function forget() {
    byId('prediction').textContent = byId('scaled').textContent = '';
    show('values', false);
    show('explanation', false);
    show('calls', false);
}

function present(reply) {
    const outputs = Object.fromEntries(reply.outputs.map(output => [output.name, output.data]));
    const main = reply.outputs[0], isShare = main.name === 'probabilities';
    const best = outputs.label ? outputs.label[0] : null;
    byId('prediction').textContent = best === null ? main.data.map(isShare ? percent : number).join(', ') : best;
    byId('version').textContent = `version ${reply.model_version}`;
    byId('scaled').textContent = [
        ...(outputs.interval_low || []).map((low, i) => `${number(low)} to ${number(outputs.interval_high[i])}`),
        ...(outputs.spread ? [`its nets differ by ${outputs.spread.map(isShare ? percent : number).join(', ')} ` +
            '(standard deviation)'] : [])].join('; ');
    show('explanation', false);
    const body = byId('values').tBodies[0];
    body.replaceChildren();
    const labels = model.labels || [];
    main.data.forEach((value, i) => {
        const row = body.insertRow(), name = labels[i] || String(i);
        row.classList.toggle('best', name === best);
        cell(row, name);
        cell(row, isShare ? percent(value) : number(value));
        if (!isShare) return;
        const bar = document.createElement('progress');
        bar.value = value;
        bar.setAttribute('aria-label', name);
        cell(row, bar);
    });
    show('values', isShare || main.data.length > 1);
}

// One request at a time; of those made meanwhile only the last is sent next.
async function predict(inputs) {
    if (pending) {
        pending.next = inputs;
        return;
    }
    pending = {};
    try {
        const body = JSON.stringify({inputs, ...(model.hasSpread ? {parameters: {spread: true}} : {})});
        present(await ask(`v2/models/${model.name}/infer`, {method: 'POST', body}));
        showError();
        showCalls(inputs);
    } catch (error) {
        showError(error.message);
    }
    const {next} = pending;
    pending = null;
    if (next) predict(next);
}

// --- Explanations ---

// Of one target, the largest contributions first; a model of several targets has several explanations.
function presentExplanation(reply) {
    const one = [reply.explanations[0]].flat()[0];
    const isShare = 'probability' in one, told = isShare ? percent : number;
    byId('explained').textContent = `${isShare ? `probability of ${one.class ?? one.target}` : one.target}: ` +
        `${told(one.probability ?? one.prediction)}; mean over ${number(reply.background_rows)} rows: ` +
        `${told(one.mean)}. What each column contributes to the difference, and its standard error:`;
    const ranked = Object.entries(one.contributions).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
    byId('contributions').replaceChildren(...ranked.map(([name, value]) => {
        const row = document.createElement('tr');
        cell(row, name);
        cell(row, `${value >= 0 ? '+' : ''}${told(value)}`);
        cell(row, `± ${told(one.errors[name])}`);
        return row;
    }));
    show('explanation', true);
}

byId('explain').addEventListener('click', async () => {
    const inputs = fieldInputs();
    await predict(inputs);
    try {
        const row = Object.fromEntries(inputs.map(input => [input.name, valueOf(input)]));
        const reply = await ask(`v1/models/${model.name}:explain`,
            {method: 'POST', body: JSON.stringify({instances: [row]})});
        presentExplanation(reply);
    } catch (error) {
        showError(error.message);
    }
});

// --- The same from a program ---

const quoted = text => `'${text.replace(/'/g, "'\\''")}'`;

function valueOf(input) {
    const [text] = input.data, isText = model.inputs.find(each => each.name === input.name).datatype === 'BYTES';
    return text === null || isText || !Number.isFinite(Number(text)) ? text : Number(text);
}

function showCalls(inputs) {
    const isTable = !byId('columns').hidden, needsToken = sessionStorage.getItem('token');
    const path = isTable ? `v1/models/${model.name}:predict` : `predict/${model.name}`;
    const url = new URL(path, location.href).href;
    const row = isTable ? inputs.map(input => [input.name, valueOf(input)]) : [];
    const python = row.map(([name, value]) => `${JSON.stringify(name)}: ${value === null ? 'None'
        : JSON.stringify(value)}`).join(', ');
    const data = isTable ? `-d ${quoted(JSON.stringify({instances: [Object.fromEntries(row)]}))}`
        : '--data-binary @digit.png';
    byId('curl').textContent = `curl ${needsToken ? '-H "Authorization: Bearer $(cat token)" ' : ''}` +
        `${data} ${url}`;
    byId('python').textContent = [
        'import json, urllib.request',
        isTable ? `body = json.dumps({"instances": [{${python}}]}).encode()`
            : 'body = open("digit.png", "rb").read()',
        `request = urllib.request.Request("${url}", body)`,
        ...(needsToken ? ['request.add_header("Authorization", "Bearer " + open("token").read().strip())'] : []),
        'print(json.load(urllib.request.urlopen(request)))',
    ].join('\n');
    show('calls', true);
}

for (const button of document.querySelectorAll('[data-copies]')) button.addEventListener('click', async () => {
    const from = byId(button.dataset.copies);
    getSelection().selectAllChildren(from);
    try {
        await navigator.clipboard.writeText(from.textContent);
        button.textContent = 'Copied';
        setTimeout(() => { button.textContent = 'Copy'; }, 2000);
    } catch { /* it is selected: Ctrl-C copies it */ }
});

// --- Pictures ---

const canvas = byId('canvas');
const pen = canvas.getContext('2d', {willReadFrequently: true});

function clear() {
    pen.fillStyle = '#000';
    pen.fillRect(0, 0, canvas.width, canvas.height);
    forget();
}

function predictDrawing() {
    const small = document.createElement('canvas');
    small.width = small.height = SIDE;
    const context = small.getContext('2d');
    context.drawImage(canvas, 0, 0, SIDE, SIDE);
    const {data} = context.getImageData(0, 0, SIDE, SIDE);
    const pixels = [];
    for (let i = 0; i < data.length; i += 4) pixels.push(data[i]);
    predict([{name: model.inputs[0].name, datatype: 'UINT8', shape: [1, SIDE * SIDE], data: pixels}]);
}

canvas.addEventListener('pointerdown', event => {
    canvas.setPointerCapture(event.pointerId);
    pen.strokeStyle = '#fff';
    pen.lineWidth = 20;
    pen.lineCap = pen.lineJoin = 'round';
    pen.beginPath();
    pen.moveTo(event.offsetX, event.offsetY);
});
canvas.addEventListener('pointermove', event => {
    if (!event.buttons) return;
    pen.lineTo(event.offsetX, event.offsetY);
    pen.stroke();
    predictDrawing();
});
canvas.addEventListener('pointerup', predictDrawing);
byId('clear').addEventListener('click', clear);
// What the server makes of a picture of another size than those of training.
async function describeScaling(file) {
    const [height, width] = model.parameters.image_shape;
    try {
        const picture = await createImageBitmap(file);
        if (picture.height === height && picture.width === width) return '';
        return `The picture, of ${picture.height}x${picture.width} pixels, was ` +
            (model.parameters.image_fit === 'digits' ? 'centred and scaled as a digit' : 'scaled') +
            ` to ${height}x${width}, as in training.`;
    } catch {
        return '';  // a format that browsers do not know
    }
}

byId('file').addEventListener('change', async event => {
    const [file] = event.target.files;
    if (!file) return;
    try {
        const reply = await ask(`predict/${model.name}`, {method: 'POST', body: file});
        present({model_version: reply.version, outputs: [
            {name: 'probabilities', data: reply.probabilities},
            {name: 'label', data: [String(reply.label ?? reply.class)]}]});
        byId('scaled').textContent = await describeScaling(file);
        showError();
        showCalls();
    } catch (error) {
        showError(error.message);
    }
});

// --- Columns ---

function makeField(input, i) {
    const {categories, typical} = (model.parameters?.columns || []).find(each => each.name === input.name) || {};
    const label = document.createElement('label'), field = document.createElement('input');
    const hint = document.createElement('span');
    label.textContent = field.name = input.name;
    label.htmlFor = field.id = `field-${i}`;
    field.inputMode = input.datatype === 'BYTES' ? 'text' : 'decimal';
    field.autocomplete = 'off';
    hint.className = 'quiet';
    if (categories) {
        const known = document.createElement('datalist');
        known.id = `known-${i}`;
        known.append(...categories.map(each => new Option(each)));
        field.setAttribute('list', known.id);
        field.dataset.typical = categories[0] ?? '';
        hint.textContent = categories.slice(0, 4).join(', ') + (categories.length > 4 ? ', ...' : '');
        hint.append(known);
    } else if (typical) {
        const [low, high] = typical, round = value => Number(value.toPrecision(3));
        field.dataset.typical = round((low + high) / 2);
        hint.textContent = `usually ${round(low)} to ${round(high)}`;
        field.addEventListener('input', () => hint.classList.toggle('outside', field.value.trim() !== '' &&
            (Number(field.value) < low || Number(field.value) > high)));
    }
    return [label, field, hint];
}

function makeFields() {
    byId('fields').replaceChildren(...model.inputs.flatMap(makeField));
}

byId('example').addEventListener('click', () => {
    for (const field of byId('fields').querySelectorAll('input')) field.value = field.dataset.typical ?? '';
    byId('columns').requestSubmit();
});

function fieldInputs() {
    return model.inputs.map((input, i) => {
        const text = byId(`field-${i}`).value.trim();
        return {name: input.name, datatype: 'BYTES', shape: [1], data: [text === '' ? null : text]};
    });
}

byId('columns').addEventListener('submit', event => {
    event.preventDefault();
    predict(fieldInputs());
});

// --- Drift ---

async function showDrift() {
    try {
        const drift = await ask(`drift/${model.name}`);
        const remark = drift.has_reference ? 'a PSI above 0.2 is worth investigating' : 'PSI needs --reference';
        byId('drift-note').textContent = `${number(drift.rows)} ${drift.rows === 1 ? 'row' : 'rows'} ` +
            `since this version entered service; ${remark}`;
        const predicted = {name: 'what it predicts', psi: drift.prediction_psi};
        byId('drift-rows').replaceChildren(...[...drift.columns, predicted].map(column => {
            const row = document.createElement('tr');
            for (const value of [column.name, column.psi, column.unknown, column.out_of_range])
                cell(row, value === null || value === undefined ? '–' : number(value));
            return row;
        }));
        byId('drift-classes').replaceChildren(...drift.predictions.map(one => {
            const row = document.createElement('tr');
            cell(row, one.class);
            cell(row, drift.rows > 0 ? percent(one.count / drift.rows) : '–');
            cell(row, one.expected_share === null ? '–' : percent(one.expected_share));
            return row;
        }));
        show('drift-predictions', drift.predictions.length > 0);
        show('drift', true);
    } catch {
        show('drift', false);
    }
}

// --- Models ---

async function choose(name) {
    try {
        model = await ask(`v2/models/${name}`);
        const shape = (model.parameters || {}).image_shape, isOfPictures = Boolean(shape);
        const isDrawn = isOfPictures && String(shape) === `${SIDE},${SIDE},1`;
        byId('version').textContent = `version ${model.versions[0]}`;
        model.labels = (model.parameters || {}).labels;
        model.hasSpread = model.outputs.some(output => output.name === 'spread');
        byId('name').textContent = byId('model').options.length > 1 ? 'trainer serve' : model.name;
        show('try', true);
        show('drawing', isOfPictures);
        show('columns', !isOfPictures);
        forget();
        for (const id of ['canvas', 'clear', 'or']) show(id, isDrawn);
        byId('drawing-title').textContent = isDrawn ? 'Draw a digit' : 'Choose a picture';
        byId('file').value = '';
        if (isDrawn) clear();
        else if (!isOfPictures) makeFields();
        showDrift();
        showError();
    } catch (error) {
        showError(error.message);
    }
}

async function begin() {
    try {
        const models = await ask('v2/repository/index');
        byId('model').replaceChildren(...models.map(one => new Option(one.name)));
        show('models', models.length > 1);
        if (models.length > 0) await choose(models[0].name);
    } catch (error) {
        showError(error.message);
    }
}

byId('model').addEventListener('change', event => choose(event.target.value));
byId('token-form').addEventListener('submit', event => {
    event.preventDefault();
    sessionStorage.setItem('token', byId('token').value);
    begin();
});
setInterval(() => model && showDrift(), 5000);
begin();
