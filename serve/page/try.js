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

function complain(text) {
    byId('problem').textContent = text || '';
    show('problem', Boolean(text));
}

function cell(row, content) {
    const made = row.insertCell();
    made.append(content);
    return made;
}

async function ask(path, options) {
    const token = sessionStorage.getItem('token');
    const headers = {...(options || {}).headers, ...(token ? {Authorization: `Bearer ${token}`} : {})};
    const answer = await fetch(path, {...options, headers});
    show('token-form', answer.status === 401);
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.error || `status ${answer.status}`);
    return said;
}

// --- Output ---

function number(value) {
    return typeof value === 'number' ? String(Number(value.toPrecision(6))) : String(value);
}

function percent(share) {
    return `${(100 * share).toFixed(1)} %`;
}

function present(said) {
    const outputs = Object.fromEntries(said.outputs.map(output => [output.name, output.data]));
    const main = said.outputs[0];
    const best = outputs.label ? outputs.label[0] : null;
    byId('prediction').textContent = best === null ? main.data.map(number).join(', ') : best;
    byId('version').textContent = `version ${said.model_version}`;
    const body = byId('values').tBodies[0];
    body.replaceChildren();
    const labels = model.labels || [];
    main.data.forEach((value, i) => {
        const row = body.insertRow();
        cell(row, labels[i] || String(i));
        cell(row, number(value));
        if (main.name !== 'probabilities') return;
        const bar = document.createElement('progress');
        bar.value = value;
        cell(row, bar);
    });
    show('values', true);
}

// One request at a time; of those made meanwhile only the last is sent next.
async function predict(inputs) {
    if (pending) {
        pending.next = inputs;
        return;
    }
    pending = {};
    try {
        present(await ask(`v2/models/${model.name}/infer`, {method: 'POST', body: JSON.stringify({inputs})}));
        complain();
    } catch (error) {
        complain(error.message);
    }
    const {next} = pending;
    pending = null;
    if (next) predict(next);
}

// --- Pictures ---

const canvas = byId('canvas');
const pen = canvas.getContext('2d', {willReadFrequently: true});

function clear() {
    pen.fillStyle = '#000';
    pen.fillRect(0, 0, canvas.width, canvas.height);
    byId('prediction').textContent = '';
    show('values', false);
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
byId('file').addEventListener('change', async event => {
    const [file] = event.target.files;
    if (!file) return;
    try {
        const said = await ask(`predict/${model.name}`, {method: 'POST', body: file});
        present({model_version: said.version, outputs: [
            {name: 'probabilities', data: said.probabilities}, {name: 'label', data: [String(said.label ?? said.class)]}]});
        complain();
    } catch (error) {
        complain(error.message);
    }
});

// --- Columns ---

function makeFields() {
    byId('fields').replaceChildren(...model.inputs.flatMap((input, i) => {
        const label = document.createElement('label');
        const field = document.createElement('input');
        label.textContent = input.name;
        label.htmlFor = field.id = `field-${i}`;
        field.inputMode = input.datatype === 'BYTES' ? 'text' : 'decimal';
        field.autocomplete = 'off';
        return [label, field];
    }));
}

byId('columns').addEventListener('submit', event => {
    event.preventDefault();
    predict(model.inputs.map((input, i) => {
        const text = byId(`field-${i}`).value.trim();
        return {name: input.name, datatype: 'BYTES', shape: [1], data: [text === '' ? null : text]};
    }));
});

// --- Drift ---

async function showDrift() {
    try {
        const drift = await ask(`drift/${model.name}`);
        byId('drift-note').textContent = `${drift.rows} rows since this version entered service` +
            (drift.has_reference ? '. A PSI above 0.2 is worth investigating.' : '; PSI needs --reference.');
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
        const isOfPictures = model.inputs.length === 1 && model.inputs[0].name === 'images' &&
            model.inputs[0].shape[1] === SIDE * SIDE;
        byId('version').textContent = `version ${model.versions[0]}`;
        model.labels = (model.parameters || {}).labels;
        show('drawing', isOfPictures);
        show('columns', !isOfPictures);
        byId('prediction').textContent = '';
        show('values', false);
        if (isOfPictures) clear();
        else makeFields();
        showDrift();
        complain();
    } catch (error) {
        complain(error.message);
    }
}

async function begin() {
    try {
        const models = await ask('v2/repository/index');
        byId('model').replaceChildren(...models.map(one => new Option(one.name)));
        show('models', models.length > 0);
        if (models.length > 0) await choose(models[0].name);
    } catch (error) {
        complain(error.message);
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
