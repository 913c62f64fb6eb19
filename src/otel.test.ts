import { context, trace } from '@opentelemetry/api'
import {
  AggregationTemporality,
  InMemoryMetricExporter,
  MeterProvider,
  PeriodicExportingMetricReader,
} from '@opentelemetry/sdk-metrics'
import {
  BasicTracerProvider,
  InMemorySpanExporter,
  type ReadableSpan,
  SimpleSpanProcessor,
} from '@opentelemetry/sdk-trace-base'
import { afterEach, describe, expect, it } from 'vitest'
import { oncekey } from './oncekey.ts'
import { instrument } from './otel.ts'
import { memoryStore } from './stores/memory.ts'

const ends: Array<() => unknown> = []
afterEach(async () => {
  for (const end of ends.splice(0)) await end()
})

describe('spans', () => {
  it('a replay is linked to the run that it repeats', async () => {
    const { once, spans } = given()
    await once.run({ key: 'a', scope: 'public' }, () => 'paid')
    await once.run({ key: 'a', scope: 'public' }, () => 'twice')
    const [run, replay] = spans()
    expect([run?.name, replay?.name]).toEqual(['oncekey.execute', 'oncekey.replay'])
    expect(replay?.links.map((link) => link.context.spanId)).toEqual([run?.spanContext().spanId])
    expect(run?.attributes).toMatchObject({
      'oncekey.end': 'kept',
      'http.response.status_code': 200,
      'oncekey.store': 'memory',
    })
    expect(replay?.attributes['oncekey.operation.id']).toBe(run?.attributes['oncekey.operation.id'])
    expect(JSON.stringify([run?.attributes, replay?.attributes])).not.toContain('"a"')
  })

  it('a refusal says why, and is linked too', async () => {
    const { once, spans } = given()
    await once.run({ key: 'a', scope: 'public', payload: 1 }, () => 'paid')
    await expect(once.run({ key: 'a', scope: 'public', payload: 2 }, () => '')).rejects.toThrow()
    const [run, refusal] = spans()
    expect(refusal).toMatchObject({ name: 'oncekey.refuse', attributes: { 'error.type': 'conflict' } })
    expect(refusal?.links.map((link) => link.context.spanId)).toEqual([run?.spanContext().spanId])
  })

  it('a run of the handler that is still going on has no end yet, and gets one when it is over', async () => {
    const { once, spans } = given()
    const { promise, resolve } = Promise.withResolvers<void>()
    const running = once.run({ key: 'a', scope: 'public' }, () => promise)
    expect(spans()).toEqual([])
    resolve()
    await running
    expect(spans()).toHaveLength(1)
  })

  it('nothing is observed after it was ended', async () => {
    const { once, spans, stop } = given()
    stop()
    await once.run({ key: 'a', scope: 'public' }, () => 'paid')
    expect(spans()).toEqual([])
  })
})

describe('metrics', () => {
  it('count events, and measure runs', async () => {
    const { once, collect } = given()
    for (let i = 0; i < 3; i++) await once.run({ key: 'a', scope: 'public' }, () => 'paid')
    const found = await collect()
    expect(found.get('oncekey.events')).toEqual({ claimed: 1, kept: 1, replayed: 2 })
    expect(found.get('oncekey.execute.duration')).toEqual({ count: 1 })
  })
})

function given() {
  const exporter = new InMemorySpanExporter()
  const provider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] })
  const measured = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE)
  const reader = new PeriodicExportingMetricReader({ exporter: measured, exportIntervalMillis: 3_600_000 })
  const meters = new MeterProvider({ readers: [reader] })
  const stop = instrument({ tracer: provider.getTracer('test'), meter: meters.getMeter('test') })
  ends.push(
    stop,
    () => meters.shutdown(),
    () => provider.shutdown(),
  )
  const collect = async () => {
    await reader.forceFlush()
    const all =
      measured
        .getMetrics()
        .at(-1)
        ?.scopeMetrics.flatMap(({ metrics }) => metrics) ?? []
    return new Map(
      all.map(({ descriptor, dataPoints }) => [
        descriptor.name,
        Object.fromEntries(
          dataPoints.map(({ attributes, value }) =>
            typeof value === 'number' ? [attributes['oncekey.event'], value] : ['count', value.count],
          ),
        ),
      ]),
    )
  }
  expect(trace.getSpan(context.active())).toBeUndefined()
  const spans = (): ReadableSpan[] => exporter.getFinishedSpans()
  return { once: oncekey({ store: memoryStore() }), spans, collect, stop }
}
