/** `npm start`: shows a first call, a retry, a conflict and a race against the demo service, and then goes on serving. */
import { demoOptions, startService } from './service.ts'

const colour = process.stdout.isTTY && !process.env.NO_COLOR
const paint = (code: number) => (text: string) => (colour ? `\x1b[${code}m${text}\x1b[0m` : text)
const bold = paint(1)
const dim = paint(2)
const green = paint(32)
const yellow = paint(33)

const options = demoOptions(process.argv.slice(2))
const service = await startService(options).catch((error: NodeJS.ErrnoException) => {
  if (error.code !== 'EADDRINUSE') throw error
  console.error(`Port ${options.port} is taken. Choose another: npm start -- --port 8081`)
  process.exit(1)
})
const session = Date.now().toString(36)
const before = service.charges()

console.log(bold('\noncekey: a retried request runs once, and every retry gets the same answer.'))
console.log(dim(`A payment service on ${service.url}, keys and charges in ${options.data}\n`))

console.log(bold('1. A first call') + dim('  the money moves'))
await show('order-1', { amount: 1999, currency: 'eur' })

console.log(
  bold('2. The same call again') +
    dim('  the client lost the answer and retries; the order of the fields does not matter'),
)
await show('order-1', { currency: 'eur', amount: 1999 })

console.log(bold('3. The same key for something else') + dim('  a bug of the client: refused, nothing runs'))
await show('order-1', { amount: 500, currency: 'eur' })

console.log(bold('4. A race') + dim('  twenty at once with one key: one runs, the others are told to come again'))
const race = await Promise.all(Array.from({ length: 20 }, () => post('order-2', { amount: 700 })))
const statuses = Object.entries(Object.groupBy(race, ({ status }) => status))
console.log(`   ${statuses.map(([status, all]) => `${all?.length} × ${paintStatus(Number(status))}`).join(',  ')}`)
await show('order-2', { amount: 700 })

const moved = service.charges() - before
console.log(
  bold(`${race.length + 4} requests, ${moved} charges.`) +
    (moved === 2 ? green('  Each order was charged once.') : yellow('  This is a bug!')),
)
console.log(`
Now you:

  curl -i ${service.url}/charges -H 'Idempotency-Key: mine-1' \\
       -H 'Content-Type: application/json' -d '{"amount": 4200}'

Send it twice. Change the amount and send it again. Kill this process (kill -9 ${process.pid}) in the middle,
start it again and retry: the answer is still there. All charges: ${service.url}/charges
Ctrl-C ends it.`)

process.once('SIGINT', async () => {
  await service.stop()
  process.exit(0)
})

interface Shown {
  readonly status: number
  readonly replayed: boolean
  readonly body: string
}

async function post(order: string, body: object): Promise<Shown> {
  const response = await fetch(`${service.url}/charges`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'idempotency-key': `${session}-${order}` },
    body: JSON.stringify(body),
  })
  const replayed = response.headers.get('idempotent-replayed') === 'true'
  return { status: response.status, replayed, body: await response.text() }
}

async function show(order: string, body: object): Promise<void> {
  console.log(dim(`   → POST /charges  Idempotency-Key: ${session}-${order}  ${JSON.stringify(body)}`))
  const { status, replayed, body: answer } = await post(order, body)
  const detail: string = status < 400 ? answer : `${JSON.parse(answer).code}: ${JSON.parse(answer).title}`
  console.log(`   ← ${paintStatus(status)}${replayed ? green('  Idempotent-Replayed: true') : ''}  ${detail}\n`)
}

function paintStatus(status: number): string {
  return (status < 400 ? green : yellow)(String(status))
}
