/** What the admin API can do, for tools. Served as /openapi.json; a test compares it with the routes. */
export function openApi(version: string): object {
  return {
    openapi: '3.1.0',
    info: {
      title: 'oncekey admin API',
      version,
      description:
        'Looks into the records of idempotent operations, and lets operators decide what nobody else can. Changes need the header X-Oncekey-Admin: 1.',
    },
    components: {
      securitySchemes: { token: { type: 'http', scheme: 'bearer' } },
      schemas: {
        Operation: {
          type: 'object',
          required: ['id', 'state', 'attempt', 'createdAt', 'goneAt', 'fingerprint', 'labels'],
          properties: {
            id: { type: 'string' },
            state: { enum: ['running', 'unknown', 'settled', 'expired'] },
            outcome: { enum: ['committed', 'rejected'] },
            status: { type: 'integer' },
            attempt: { type: 'integer' },
            createdAt: { type: 'number', description: 'Milliseconds since the epoch, on the store’s clock.' },
            goneAt: { type: 'number' },
            leaseLeftMs: { type: 'number' },
            expiresInMs: { type: 'number' },
            fingerprint: { type: 'string' },
            labels: { type: 'object', additionalProperties: { type: 'string' } },
          },
        },
        Problem: {
          type: 'object',
          properties: { title: { type: 'string' }, status: { type: 'integer' }, detail: { type: 'string' } },
        },
      },
    },
    security: [{}, { token: [] }],
    paths: {
      '/livez': { get: answers('This process answers.', 'text/plain') },
      '/readyz': { get: answers('The store answers, too; 503 when it does not.', 'text/plain') },
      '/metrics': { get: answers('Counters and gauges in Prometheus’ text format.', 'text/plain') },
      '/openapi.json': { get: answers('This document.') },
      '/api/status': { get: answers('Version, store, gate and counters.') },
      '/api/operations': {
        get: {
          ...answers('A page of operations, in the order of their ids. `next` goes on where this call ended.'),
          parameters: [
            query('state', { enum: ['running', 'unknown', 'settled', 'expired'] }),
            query('q', {
              type: 'string',
              description: 'A key, or the beginning of an id; part of a key where keys are shown.',
            }),
            query('route', { type: 'string' }),
            query('principal', { type: 'string' }),
            query('after', { type: 'string' }),
            query('limit', { type: 'integer', minimum: 1, maximum: 1000, default: 100 }),
          ],
        },
      },
      '/api/operations/{id}': { get: { ...answers('One operation with its answer and its story.'), parameters: [ID] } },
      '/api/operations/{id}/release': change(
        'Forgets the record: the next request with this key runs. 409 while it is running, unless forced.',
        { type: 'object', properties: { force: { type: 'boolean' } } },
      ),
      '/api/operations/{id}/fail': change(
        'Settles an operation of unknown outcome as failed. 409 in any other state.',
        {
          type: 'object',
          properties: { status: { type: 'integer', minimum: 400, maximum: 599 }, note: { type: 'string' } },
        },
      ),
      '/api/operations/{id}/redact': change('Removes body, headers and labels; the claim stays.'),
      '/api/events': {
        get: {
          ...answers('What happens, as it happens. Resumes after Last-Event-ID.', 'text/event-stream'),
          parameters: [
            query('recent', {
              type: 'integer',
              description: 'Without Last-Event-ID: how many past events come first.',
            }),
          ],
        },
      },
      '/api/rates': {
        get: {
          ...answers('Counts by outcome and second.'),
          parameters: [query('window', { type: 'integer', description: 'Seconds, at most 900.' })],
        },
      },
      '/api/expiry': {
        get: answers(
          'How many records there are by state, and are gone by when, over the first 5,000. Counted again after 5 seconds.',
        ),
      },
    },
  }
}

const ID = { name: 'id', in: 'path', required: true, schema: { type: 'string' } }

function query(name: string, schema: object): object {
  return { name, in: 'query', schema }
}

function answers(description: string, type = 'application/json'): object {
  return { responses: { 200: { description, content: { [type]: {} } } } }
}

function change(description: string, body?: object): object {
  return {
    post: {
      ...answers(description),
      parameters: [ID, { name: 'X-Oncekey-Admin', in: 'header', required: true, schema: { const: '1' } }],
      ...(body && { requestBody: { content: { 'application/json': { schema: body } } } }),
    },
  }
}
