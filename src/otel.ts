import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import {
  type Attributes,
  type Link,
  type Meter,
  metrics,
  type Span,
  type SpanContext,
  SpanStatusCode,
  type Tracer,
  trace,
} from '@opentelemetry/api'
import type { EventType, OncekeyEvent } from './events.ts'

export interface InstrumentOptions {
  /** Default: those that were registered globally. */
  readonly tracer?: Tracer
  readonly meter?: Meter
}

/**
 * Spans and metrics of every operation in this process, made from the engine's events. A run is a span
 * (`oncekey.execute`) inside the span that was active when the request came; a replay or a refusal is a short span with a
 * link to the run that it repeats, as long as that run was in this process and is not forgotten. Across processes the
 * attribute `oncekey.operation.id` is what they share. Returns a function that ends it.
 */
export function instrument(options: InstrumentOptions = {}): () => void {
  const observer = new Observer(
    options.tracer ?? trace.getTracer('oncekey'),
    options.meter ?? metrics.getMeter('oncekey'),
  )
  const listener = (message: unknown): void => observer.observe(message as OncekeyEvent)
  subscribe('oncekey', listener)
  return () => {
    unsubscribe('oncekey', listener)
    observer.close()
  }
}

/** Runs that are remembered for links, and runs that have not ended: the oldest goes first. */
const REMEMBERED_MAX = 20_000

const BEGINS: ReadonlySet<EventType> = new Set(['claimed', 'takeover'])
const ENDS: ReadonlySet<EventType> = new Set(['kept', 'released', 'left-unknown', 'unrecorded'])
const REFUSALS: ReadonlySet<EventType> = new Set([
  ...(['conflict', 'in-flight', 'unknown', 'expired', 'not-kept', 'refused'] as const),
])

interface Running {
  readonly span: Span
  readonly startedMs: number
}

class Observer {
  readonly #tracer: Tracer
  readonly #events
  readonly #durations
  readonly #running = new Map<string, Running>()
  readonly #known = new Map<string, SpanContext>()

  constructor(tracer: Tracer, meter: Meter) {
    this.#tracer = tracer
    this.#events = meter.createCounter('oncekey.events', { description: 'What happened to operations, by type.' })
    this.#durations = meter.createHistogram('oncekey.execute.duration', {
      unit: 's',
      description: 'How long handlers ran, until their answer was recorded.',
    })
  }

  observe(event: OncekeyEvent): void {
    const { type, contract, store } = event
    this.#events.add(1, { 'oncekey.event': type, 'oncekey.contract': contract, 'oncekey.store': store })
    if (BEGINS.has(type)) this.#begin(event)
    else if (ENDS.has(type)) this.#end(event)
    else if (type === 'replayed') this.#note('oncekey.replay', event)
    else if (REFUSALS.has(type)) this.#note('oncekey.refuse', event)
    else this.#running.get(event.id)?.span.addEvent(type)
  }

  close(): void {
    for (const { span } of this.#running.values()) span.end()
    this.#running.clear()
  }

  #begin(event: OncekeyEvent): void {
    const span = this.#tracer.startSpan('oncekey.execute', {
      attributes: { ...attributesOf(event), 'oncekey.takeover': event.type === 'takeover' },
      // A takeover goes on with what another run had begun.
      links: this.#links(event.id),
    })
    this.#running.get(event.id)?.span.end()
    keep(this.#running, event.id, { span, startedMs: performance.now() })
    keep(this.#known, event.id, span.spanContext())
  }

  #end(event: OncekeyEvent): void {
    const running = this.#running.get(event.id)
    if (running === undefined) return
    this.#running.delete(event.id)
    const { span, startedMs } = running
    span.setAttributes({ ...attributesOf(event), 'oncekey.end': event.type })
    if (event.type === 'left-unknown' || event.type === 'unrecorded') span.setStatus({ code: SpanStatusCode.ERROR })
    span.end()
    const attributes = { 'oncekey.end': event.type, 'oncekey.contract': event.contract, 'oncekey.store': event.store }
    this.#durations.record((performance.now() - startedMs) / 1_000, attributes)
  }

  #note(name: string, event: OncekeyEvent): void {
    const attributes: Attributes = attributesOf(event)
    if (name === 'oncekey.refuse') attributes['error.type'] = event.type
    const span = this.#tracer.startSpan(name, { attributes, links: this.#links(event.id) })
    if (name === 'oncekey.refuse') span.setStatus({ code: SpanStatusCode.ERROR, message: event.type })
    span.end()
  }

  #links(id: string): Link[] {
    const context = this.#known.get(id)
    return context === undefined ? [] : [{ context, attributes: { 'oncekey.link': 'original' } }]
  }
}

/** Neither key nor principal: traces go to more people than the service does. */
function attributesOf({ id, contract, store, labels, status }: OncekeyEvent): Attributes {
  return {
    'oncekey.operation.id': id,
    'oncekey.contract': contract,
    'oncekey.store': store,
    ...(labels?.route !== undefined && { 'http.route': labels.route }),
    ...(status !== undefined && { 'http.response.status_code': status }),
  }
}

function keep<T>(map: Map<string, T>, id: string, value: T): void {
  map.delete(id)
  map.set(id, value)
  if (map.size <= REMEMBERED_MAX) return
  for (const oldest of map.keys()) {
    map.delete(oldest)
    return
  }
}
